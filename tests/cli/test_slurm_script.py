"""The batch scripts that `jupyter gpuckpt slurm-script` prints; tests/engines runs them in jobs of a real Slurm."""

import subprocess

import pytest

from jupyter_gpuckpt.cli import app, slurm_script


@pytest.mark.parametrize(("options", "stopped"), [([], "130 143"), (["--server"], "0")])
def test_the_printed_script_is_bash_and_complete(capsys, options, stopped):
    assert app.main(["slurm-script", *options]) == 0
    printed = capsys.readouterr().out
    assert printed == slurm_script.script(for_server=bool(options))
    assert f'\nstopped="{stopped}"\n' in printed
    assert "@EXAMPLE@" not in printed
    subprocess.run(["bash", "-n"], input=printed, text=True, check=True)
    # sbatch ignores options after the first command.
    before_commands = printed.partition("\nstopped=")[0].splitlines()
    assert sum(line.startswith("#SBATCH ") for line in before_commands) == 3
    assert all(line.startswith("#") or not line for line in before_commands)
