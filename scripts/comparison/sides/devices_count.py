"""Number of CPU devices of a side, the end of its job's name. It is imported before anything that starts JAX."""

import sys

from evorl.training.devices import set_host_devices

COUNT = int(sys.argv[1].rpartition("_")[2])
set_host_devices(COUNT)
