"""Every remote against a real server on the loopback interface."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.errors import PublishRefusedError, RemoteError, SettingError, ToolMissingError
from sm120_wheels.index import maintain
from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.publish import publish
from sm120_wheels.index.remotes import folder, open_remote, push, rsync, s3
from sm120_wheels.index.remotes.plan import page_keys
from sm120_wheels.index.remotes.registry import upload
from sm120_wheels.index.verify import verify
from tests.index.makewheel import beside, make_wheel
from tests.support.servers import held_port, server


@pytest.fixture
def index(root: Path, dist: Path) -> Path:
    wheel = make_wheel(dist)
    beside(wheel, "smoke", state="passed", gpu="RTX 5090")
    publish(root, [wheel, make_wheel(dist, "other", "1.0+cu128.sm120a")])
    return root


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("/srv/whl", folder.Folder),
        ("file:///srv/whl", folder.Folder),
        ("s3://bucket/a/b", s3.Bucket),
        ("host:whl", rsync.Host),
        ("me@host:/srv/whl", rsync.Host),
        ("rsync://host/module", rsync.Host),
        ("ssh://me@host:2222/srv/whl", rsync.Host),
    ],
)
def test_address_tells_the_kind(address: str, kind: type) -> None:
    assert type(open_remote(address)) is kind


@pytest.mark.parametrize(
    "address", ["https://host/x", "s3://", "ssh://host", "-oProxyCommand=x:y", "ftp://a/b", "ho st:x"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(SettingError):
        open_remote(address)


def test_unpublished_index_is_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no index here"):
        push(tmp_path / "nothing", str(tmp_path / "copy"))


# -- folders, and hosts reached by rsync: true copies


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An rsync server: its address, and the folder it writes to."""
    if not shutil.which("rsync"):
        pytest.skip("not run: rsync is not installed")
    target = tmp_path / "module"
    target.mkdir()
    config = tmp_path / "rsyncd.conf"
    config.write_text(
        f"use chroot = no\nmunge symlinks = no\n[whl]\npath = {target}\nread only = no\n"
        f"uid = {os.getuid()}\ngid = {os.getgid()}\n"
    )
    argv = ["rsync", "--daemon", "--no-detach", "--address=127.0.0.1", f"--config={config}"]
    with held_port() as port, server(*argv, f"--port={port}", port=port):
        yield f"rsync://127.0.0.1:{port}/whl/cuda", target / "cuda"


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A real sshd with a key of its own."""
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if not sshd or not shutil.which("rsync"):
        pytest.skip("not run: sshd or rsync is not installed")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "authorized").write_text((tmp_path / "user.pub").read_text())
    config = tmp_path / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"PidFile {tmp_path}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    client = tmp_path / "ssh_config"
    client.write_text(
        f"Host *\nIdentityFile {tmp_path}/user\nStrictHostKeyChecking no\nUserKnownHostsFile {tmp_path}/known\n"
    )
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {client} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    argv = (sshd, "-D", "-e", "-f", config)
    with held_port() as port, server(*argv, "-p", str(port), port=port, quiet=True):
        yield f"ssh://127.0.0.1:{port}{tmp_path}/copy", tmp_path / "copy"


@pytest.fixture(params=["folder", "daemon"])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The address of a remote that holds a true copy, and the copy."""
    if request.param == "folder":
        return str(tmp_path / "copy"), tmp_path / "copy"
    found: tuple[str, Path] = request.getfixturevalue(request.param)
    return found


def test_true_copy_is_an_index_that_verifies(index: Path, dist: Path, copy: tuple[str, Path]) -> None:
    address, there = copy
    first = push(index, address)
    assert first.files > 0
    assert first.pages > 0
    assert verify(there).findings == ()
    again = push(index, address)
    assert (again.files, again.pages) == (0, 0)
    publish(index, [make_wheel(dist, version="0.2.0+cu130.torch211.sm120a")])
    push(index, address)
    assert (there / "cu130/sm120-selftest/index.html").read_bytes() == (
        index / "cu130/sm120-selftest/index.html"
    ).read_bytes()
    assert verify(there).findings == ()
    maintain.prune(index, keep=1)
    with pytest.raises(PublishRefusedError, match="the remote holds wheels that this index does not") as refused:
        push(index, address)
    assert "--delete" in refused.value.hint
    push(index, address, delete=True)
    assert verify(there).findings == ()
    assert len(list(there.glob("files/*/*/*.whl"))) == 2


def test_true_copy_goes_over_ssh(index: Path, ssh: tuple[str, Path]) -> None:
    address, there = ssh
    push(index, address)
    assert verify(there).findings == ()


def test_other_index_cannot_change_what_was_pushed(index: Path, tmp_path: Path, copy: tuple[str, Path]) -> None:
    address, there = copy
    push(index, address)
    before = (there / "cu130/sm120-selftest/index.html").read_bytes()
    publish(tmp_path / "rival", [make_wheel(tmp_path / "rival-dist", content=b"other\n")])
    with pytest.raises(PublishRefusedError, match="was pushed before with other bytes"):
        push(tmp_path / "rival", address)
    assert (there / "cu130/sm120-selftest/index.html").read_bytes() == before


def test_index_that_was_published_to_is_not_overwritten(index: Path, tmp_path: Path) -> None:
    publish(tmp_path / "own", [make_wheel(tmp_path, "mine", "1.0+cu130.sm120a")])
    with pytest.raises(PublishRefusedError, match="is an index of its own"):
        push(index, str(tmp_path / "own"))
    with pytest.raises(PublishRefusedError, match="cannot be pushed to itself"):
        push(index, str(index))


def test_unreachable_host_is_one_message(index: Path) -> None:
    with held_port() as port, pytest.raises(RemoteError, match="rsync failed") as failed:
        push(index, f"rsync://127.0.0.1:{port}/whl")
    assert failed.value.exit_code == 82
    assert "refused" in failed.value.why


# -- object storage


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    """An S3 server."""
    argv = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1")
    with held_port() as port, server(*argv, "-p", str(port), port=port, quiet=True):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def bucket(storage: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client with an empty bucket called wheels."""
    boto3 = pytest.importorskip("boto3")
    for name, value in {
        "AWS_ENDPOINT_URL": storage,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(urllib.request.Request(f"{storage}/moto-api/reset", method="POST")).close()
    client = boto3.client("s3")
    client.create_bucket(Bucket="wheels")
    return client


def keys(bucket: Any) -> dict[str, int]:
    return {i["Key"]: i["Size"] for i in bucket.list_objects_v2(Bucket="wheels").get("Contents", [])}


def test_object_storage_serves_pip_without_a_web_server(index: Path, bucket: Any, storage: str, tmp_path: Path) -> None:
    bucket.put_bucket_acl(Bucket="wheels", ACL="public-read")
    pushed = push(index, "s3://wheels/whl")
    assert pushed.files == len([k for k in keys(bucket) if k.startswith("whl/files/")])
    address = f"{storage}/wheels/whl/cu130/"
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--isolated",
        "-d",
        tmp_path,
    ]
    # The test server signs nothing; a public bucket needs no credentials.
    done = subprocess.run([*argv, "-i", address, "sm120-selftest"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("sm120_selftest-*.whl"))) == 1


def test_objects_say_what_they_are_and_how_long_they_last(index: Path, bucket: Any) -> None:
    push(index, "s3://wheels/whl")
    (wheel,) = [k for k in keys(bucket) if "/sm120_selftest" in k and k.endswith(".whl")]
    assert "immutable" in bucket.head_object(Bucket="wheels", Key=wheel)["CacheControl"]
    for key, kind in {
        "whl/cu130/sm120-selftest/": "text/html; charset=utf-8",
        "whl/cu130/sm120-selftest/index.html": "text/html; charset=utf-8",
        "whl/cu130/sm120-selftest/index.json": "application/vnd.pypi.simple.v1+json",
        "whl/": "text/html; charset=utf-8",
    }.items():
        head = bucket.head_object(Bucket="wheels", Key=key)
        assert (head["ContentType"], head["CacheControl"]) == (kind, "no-cache")


def test_second_push_sends_only_what_changed(index: Path, dist: Path, bucket: Any) -> None:
    push(index, "s3://wheels/whl")
    again = push(index, "s3://wheels/whl")
    assert (again.files, again.pages) == (0, 0)
    publish(index, [make_wheel(dist, version="0.2.0+cu130.torch211.sm120a")])
    third = push(index, "s3://wheels/whl")
    assert third.files == 5  # the wheel, METADATA, audit, bill of materials and record
    assert third.pages == 6  # its project's pages and the front page; not those of the other project
    maintain.prune(index, keep=1)
    push(index, "s3://wheels/whl", delete=True)
    assert len([k for k in keys(bucket) if k.endswith(".whl")]) == 2


def test_files_come_before_the_pages_that_name_them(index: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that stops after any object leaves no page that names a file which is not there."""
    sent: list[str] = []
    monkeypatch.setattr(s3.Bucket, "_put_page", lambda self, client, key, body: sent.append(key))
    push(index, "s3://wheels/whl")
    assert sent == [key for key, _ in page_keys(Snapshot.current(index))]
    assert sent[-1] == "index.html"
    first_list = sent.index("cu128/index.json")
    assert all(key.count("/") == 2 for key in sent[:first_list])
    assert len([k for k in keys(bucket) if k.startswith("whl/files/")]) > 0


def test_other_index_cannot_change_what_was_pushed_to_storage(index: Path, bucket: Any, tmp_path: Path) -> None:
    push(index, "s3://wheels/whl")
    before = keys(bucket)
    publish(tmp_path / "rival", [make_wheel(tmp_path, content=b"other\n")])
    with pytest.raises(PublishRefusedError, match="was pushed before with other bytes"):
        push(tmp_path / "rival", "s3://wheels/whl")
    assert keys(bucket) == before


def test_missing_bucket_and_damaged_memory_are_one_message_each(index: Path, bucket: Any) -> None:
    with pytest.raises(RemoteError, match="the object storage failed") as failed:
        push(index, "s3://nosuchbucket/whl")
    assert "nosuchbucket" in failed.value.where
    bucket.put_object(Bucket="wheels", Key="whl/.state/pushed.json", Body=b"{")
    with pytest.raises(RemoteError, match="what the remote remembers cannot be read"):
        push(index, "s3://wheels/whl")


# -- registries


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    store = tmp_path_factory.mktemp("registry")
    argv = (sys.executable, "-m", "pypiserver", "run", "-i", "127.0.0.1", "-P", ".", "-a", ".")
    with held_port() as port, server(*argv, "-p", str(port), store, port=port, quiet=True):
        yield f"http://127.0.0.1:{port}/", store


def test_registry_takes_published_wheels_and_refuses_them_twice(
    index: Path, registry: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store = registry
    monkeypatch.setenv("TWINE_USERNAME", "u")
    monkeypatch.setenv("TWINE_PASSWORD", "p")
    (name,) = upload(index, ["sm120-selftest"], url=url)
    assert (store / name).read_bytes() == next(index.glob(f"files/*/*/{name}")).read_bytes()
    with pytest.raises(RemoteError, match="did not take the upload") as failed:
        upload(index, [name], url=url)
    assert "HTTPError: 4" in failed.value.why


def test_yanked_and_unpublished_wheels_are_not_uploaded(index: Path) -> None:
    maintain.yank(index, "other", reason="bad")
    with pytest.raises(PublishRefusedError, match="a yanked wheel is not uploaded"):
        upload(index, ["other"], url="http://127.0.0.1:9/")
    with pytest.raises(SettingError, match="no published wheel"):
        upload(index, ["nosuch"], url="http://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("module", "work"),
    [
        ("boto3", lambda index: push(index, "s3://wheels/whl")),
        ("twine", lambda index: upload(index, ["other"], url="http://127.0.0.1:9/")),
    ],
)
def test_missing_extra_is_named(index: Path, monkeypatch: pytest.MonkeyPatch, module: str, work: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ToolMissingError) as missing:
        work(index)
    assert "sm120-wheels[" in missing.value.hint
