import os
import signal
import subprocess
import sys

import pytest

from nightschool.errors import BusyError
from nightschool.store.lock import lock_state


def test_a_second_up_is_told_who_holds_the_state(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from nightschool.store.lock import lock_state\n"
        "with lock_state(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(BusyError) as caught, lock_state(tmp_path):
            pass
        assert f"Process {process.pid} " in caught.value.why
        assert "NIGHTSCHOOL_STATE" in caught.value.next_step
        os.kill(process.pid, signal.SIGKILL)
    with lock_state(tmp_path):  # a lock ends with its process
        assert (tmp_path / "up.lock").read_text() == str(os.getpid())
        with pytest.raises(BusyError), lock_state(tmp_path):
            pass
    with lock_state(tmp_path / "made"):
        pass
