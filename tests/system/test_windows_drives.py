"""Windows' drives are known by the mounts of WSL, as both of its versions write them."""

from __future__ import annotations

import pytest

from ultramon.hosts.doctor_context import DoctorContext
from ultramon.hosts.examine.doctor import check_directory
from ultramon.system import processes
from ultramon.system.windows_drives import windows_drive_of

MOUNTS = r"""/dev/sdc / ext4 rw,relatime,discard,errors=remount-ro,data=ordered 0 0
none /mnt/wsl tmpfs rw,relatime 0 0
C:\134 /mnt/c 9p rw,noatime,dirsync,aname=drvfs;path=C:\;uid=1000,trans=fd 0 0
drvfsD /mnt/d virtiofs rw,relatime 0 0
E: /mnt/e\040f drvfs rw,noatime,uid=1000,gid=1000,case=off 0 0
drivers /usr/lib/wsl/drivers 9p ro,nosuid,nodev,noatime,aname=drivers;fmask=222,trans=fd 0 0
/dev/sdc /mnt/c/linux ext4 rw,relatime 0 0
"""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """The mounts of a machine with WSL."""
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(processes, "PROC", str(tmp_path))
    return tmp_path / "mounts"


@pytest.mark.parametrize(
    ("path", "drive"),
    [
        ("/mnt/c/Users/dev/state", "/mnt/c"),
        ("/mnt/c", "/mnt/c"),
        ("/mnt/d/state", "/mnt/d"),
        ("/mnt/e f/state", "/mnt/e f"),
        ("/mnt/c/linux/state", None),
        ("/mnt/cc/state", None),
        ("/home/dev/.local/state", None),
        ("/usr/lib/wsl/drivers/x", None),
    ],
)
def test_a_drive_is_told_from_a_folder_of_linux(mounts, path, drive):
    """The longest place counts, and other folders come by the same protocol."""
    assert windows_drive_of(path) == drive


def test_without_mounts_there_is_no_drive(mounts):
    """As on macOS, which has none of these either."""
    mounts.unlink()
    assert windows_drive_of("/mnt/c") is None


def test_the_doctor_warns_of_a_state_directory_on_a_drive(tmp_path, monkeypatch):
    """The database of the journal needs locks and shared memory that such a drive does not keep."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (tmp_path / "mounts").write_text(f"C:\\134 {tmp_path} 9p rw,aname=drvfs;path=C:\\ 0 0\n")
    monkeypatch.setattr(processes, "PROC", str(tmp_path))
    (found,) = check_directory(DoctorContext(str(tmp_path), str(state), 0.0))
    assert (found.check, found.status) == ("state directory", "warning")
    assert f"on the Windows drive {tmp_path}" in found.message
    assert "ULTRAMON_STATE_DIR" in found.cure
