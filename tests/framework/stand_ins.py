"""Stand-ins for tools that create machines elsewhere: they have the tools' commands, and create namespaces here."""

from __future__ import annotations

from pathlib import Path

from tests.framework.own_machines import CREATE, ENTER, PID, READY


def write_tool(folder: Path, name: str, forms: dict[str, str]) -> None:
    """Write the program `name` into `folder`.

    `forms` maps patterns of its command line to shell code that sets `what` and `name`.
    """
    state = folder / "state"
    state.mkdir(exist_ok=True)
    cases = "\n".join(f"  {pattern}) {code} ;;" for pattern, code in forms.items())
    script = f"""#!/bin/sh
state={state}
ready={_quoted(READY)}
pid={_quoted(PID)}
all="$*"
case "$all" in
{cases}
  *) echo "{name}: no such command: $all" >&2; exit 64 ;;
esac
# What follows has the folder as $0 in the definitions of namespaces.
run() {{ code=$1; shift; exec sh -c "$code" "$state" "$@"; }}
case $what in
  create) sh -c {_quoted(CREATE)} "$state" "$name"
    until sh -c "$ready" "$state" "$name" 2> /dev/null; do sleep 0.05; done ;;
  ready) run "$ready" "$name" ;;
  enter) run {_quoted(ENTER)} "$name" "$@" ;;
  line) run {_quoted(ENTER)} "$name" sh -c "$line" ;;
  remove) [ ! -e "$state/$name" ] || {{ kill -KILL "$(cat "$state/$name")"; rm "$state/$name"; }} ;;
  list) ls "$state" ;;
  pid) run "$pid" "$name" ;;
  version) echo 1.0 ;;
esac
"""
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _behind(option: str) -> str:
    """Return shell code that sets `name` to the word after an option."""
    return f'while [ $# -gt 0 ]; do [ "$1" != {option} ] || {{ name=$2; break; }}; shift; done'


_DOCKER = {
    '"run --detach "*"--name "*" sleep infinity"': f"what=create; {_behind('--name')}",
    '"exec -i "*': "what=enter; name=$3; shift 3",
    '"rm --force "*': "what=remove; name=$3",
    '"ps --all --format {{.Names}}"': "what=list",
    '"inspect --format {{.State.Pid}} "*': "what=pid; name=$4",
    '"version "*': "what=version",
}
# By definition: the programs that it runs, with the forms they take.
TOOLS: dict[str, dict[str, dict[str, str]]] = {
    "docker": {"docker": _DOCKER},
    "kata": {"nerdctl": _DOCKER, "kata-runtime": {'"--version"': "what=version"}},
    "pod": {
        "kubectl": {
            '"run "*" --image "*" --restart Never --overrides "*" --command -- sleep infinity"': "what=create; name=$2",
            '"wait --for condition=Ready "*" pod/"*': "what=ready; name=${all##*pod/}",
            '"exec -i "*" -- "*': "what=enter; name=$3; shift 4",
            '"delete pod "*" --ignore-not-found --grace-period 0 --force"': "what=remove; name=$3",
            '"get pods "*': "what=list",
            '"version "*': "what=version",
        }
    },
    "incus": {
        "incus": {
            '"launch "*" --ephemeral"*': "what=create; name=$3",
            '"exec --mode non-interactive "*" -- "*': "what=enter; name=$4; shift 5",
            '"exec "*" -- true"': "what=ready; name=$2",
            '"delete --force "*': "what=remove; name=$3",
            '"list "*': "what=list",
            '"--version"': "what=version",
        }
    },
    "lima": {
        "limactl": {
            '"start --name "*" --tty=false --cpus "*" --memory "*" template:"*': "what=create; name=$3",
            '"shell --workdir / "*': "what=enter; name=$4; shift 4",
            '"delete --force "*': "what=remove; name=$3",
            '"list --quiet"': "what=list",
            '"--version"': "what=version",
        }
    },
    "gcloud": {
        "gcloud": {
            '"compute instances create "*': "what=create; name=$4",
            '"compute ssh "*" --command true"': "what=ready; name=$3",
            '"compute ssh "*" --command="*" -- -T"': "what=line; name=$3; line=${7#--command=}",
            '"compute instances delete "*" --quiet"': "what=remove; name=$4",
            '"compute instances list "*': "what=list",
            '"version"': "what=version",
        }
    },
}


def install_tools(folder: Path, definition: str) -> Path:
    """Write all programs that a shipped definition runs, and return the folder to add to PATH."""
    for name, forms in TOOLS[definition].items():
        write_tool(folder, name, forms)
    return folder
