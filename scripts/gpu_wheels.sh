#!/usr/bin/env bash
# Collects into .whl of the current folder the wheels that a CUDA image with JAX and CPython 3.12 still needs to run evorl.
#   bash scripts/gpu_wheels.sh                       here; versions are those of constraints.txt
#   python3 -m pip install --no-index --no-deps --target site .whl/*.whl       on the machine with the GPU
#   PYTHONPATH=site:. python3 scripts/gpu.py OUT
set -euo pipefail
constraints=$(cd "$(dirname "$0")/.." && pwd)/constraints.txt
mkdir -p .whl
tags=(--only-binary=:all: --python-version 3.12 --implementation cp)
for glibc in 2_39 2_38 2_36 2_35 2_34 2_31 2_28 2_27 2_24 2_17; do tags+=(--platform "manylinux_${glibc}_x86_64"); done
tags+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any)
needed=(brax mujoco mujoco-core mujoco-mjx jaxopt trimesh evosax dotmap ml-collections tensorboardx flask flask-cors
        itsdangerous blinker glfw pyopengl hydra-core omegaconf gymnax gymnasium farama-notifications cloudpickle rich
        jaxtyping wadler-lindig playground mediapy "$@")
for name in "${needed[@]}"; do
    pinned=$(grep -i "^$name==" "$constraints" || echo "$name")
    python3 -m pip download -q --no-deps "${tags[@]}" -d .whl "$pinned" || echo "no wheel of $pinned" >&2
done
python3 -m pip wheel -q --no-deps -w .whl "antlr4-python3-runtime==4.9.3" # published as a source archive only
du -sh .whl
