"""Sizes of the updates of TD3 and SAC on random batches."""

OBS, ACTIONS, BATCH, INTERVAL = 17, 6, 256, 2
UPDATES = 128  # of all members together
