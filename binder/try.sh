#!/usr/bin/env bash
# Make mybinder.org's environment in an empty folder, and run every notebook in it.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3}"
wanted="$(sed 's/^python-//' "$root/binder/runtime.txt")"
"$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$wanted')" || {
  echo "needs Python $wanted; type: PYTHON=python$wanted binder/try.sh" >&2
  exit 2
}

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$root"
files=(binder constraints.txt js LICENSE nbpipe notebooks pyproject.toml README.md)
mkdir "$folder/clone"
cp -r "${files[@]}" "$folder/clone"
cd "$folder/clone"
rm -rf js/node_modules js/labextension/node_modules nbpipe/jupyter/static

"$python" -m venv "$folder/env"
export PATH="$folder/env/bin:$PATH"
python -m pip install --quiet --disable-pip-version-check -r binder/requirements.txt
bash binder/postBuild
test -f "$folder/env/share/jupyter/labextensions/jupyter-nbpipe/package.json"
failed=()
export NBPIPE_NOTEBOOK_SECONDS=4
for notebook in notebooks/*.ipynb; do
  echo "$notebook"
  python binder/peak.py 2.0 jupyter-nbconvert --to notebook --execute --stdout \
    "$notebook" > "$folder/executed.ipynb" || failed+=("$notebook")
done
if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
