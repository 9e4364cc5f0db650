"""The checker that jaxtyping runs on every annotation of evorl: int passes for float, as everywhere in Python."""

import beartype

check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
