#!/usr/bin/env python3
"""pack: archives and lists that deploy/build puts together. The same input gives the same bytes."""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
USER = 10000
# Applets of busybox that shims, charts and operators use.
APPLETS = """ash sh cat chmod cp cut date df dirname du echo env expr false find free grep head hostname id kill ln ls mkdir more mv nc
netstat nslookup ping printf ps pwd readlink realpath rm sed seq sleep sort stat tail tar tee test timeout top touch tr true uname uniq
vi wc wget which whoami xargs""".split()
AUTHORITIES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")


class Tree:
    """Files of an archive, by path."""

    def __init__(self):
        self.members = {}

    def directory(self, path, user=0, mode=0o755):
        self.add(path, tarfile.DIRTYPE, b"", mode, user)

    def file(self, path, content, mode=0o644, user=0):
        self.add(path, tarfile.REGTYPE, content, mode, user)

    def link(self, path, target):
        self.add(path, tarfile.SYMTYPE, b"", 0o777, 0, target)

    def add(self, path, kind, content, mode, user, target=""):
        info = tarfile.TarInfo(path)
        info.type, info.size, info.mode, info.mtime = kind, len(content), mode, EPOCH
        info.uid, info.gid, info.linkname = user, 0, target
        self.members[path] = (info, content)
        parent = os.path.dirname(path)
        if parent and parent not in self.members:
            self.directory(parent)

    def tar(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path in sorted(self.members):
                info, content = self.members[path]
                archive.addfile(info, io.BytesIO(content))
        return out.getvalue()


def compressed(content):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, compresslevel=9) as file:
        file.write(content)
    return out.getvalue()


def root_file_system(arguments):
    tree = Tree()
    tree.file("usr/bin/bindery", arguments.binary.read_bytes(), 0o755)
    tree.file("bin/busybox", arguments.busybox.read_bytes(), 0o755)
    for applet in APPLETS:
        tree.link(f"bin/{applet}", "busybox")
    tree.file("bin/bash", (HERE / "image/bash").read_bytes(), 0o755)
    tree.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nbookkeeper:x:10000:0:bookie:/pulsar:/bin/sh\n")
    tree.file("etc/group", b"root:x:0:\n")
    tree.file("etc/nsswitch.conf", b"hosts: files dns\n")
    if AUTHORITIES.exists():
        tree.file("etc/ssl/certs/ca-certificates.crt", AUTHORITIES.read_bytes())
    else:
        raise SystemExit(f"{AUTHORITIES} is missing: install ca-certificates")
    tree.directory("tmp", mode=0o1777)
    tree.directory("root", mode=0o700)
    for home, names in [
        ("pulsar", ["bookkeeper", "pulsar", "apply-config-from-env.py"]),
        ("opt/bookkeeper", ["bookkeeper"]),
    ]:
        for name in names:
            tree.file(f"{home}/bin/{name}", (HERE / "image" / name).read_bytes(), 0o755)
    # Charts append to them.
    for name in ["pulsar_env.sh", "bkenv.sh"]:
        tree.file(f"pulsar/conf/{name}", b"", 0o664)
    tree.file("pulsar/conf/bookkeeper.conf", (HERE / "image/bookkeeper.conf").read_bytes())
    tree.file("opt/bookkeeper/conf/bk_server.conf", (HERE / "image/bk_server.conf").read_bytes())
    for name in ["entrypoint.sh", "healthcheck.sh", "apply-config-from-env.py"]:
        tree.file(f"opt/bookkeeper/scripts/{name}", (HERE / "image" / name).read_bytes(), 0o755)
    # The group is that of any user of OpenShift.
    for path in ["data", "data/bookkeeper", "pulsar/data", "pulsar/data/bookkeeper", "pulsar/logs"]:
        tree.directory(path, USER, 0o775)
    tree.file("usr/share/doc/busybox/copyright", pathlib.Path(f"{arguments.busybox}.copyright").read_bytes())
    tree.file("usr/share/doc/bindery/LICENSE", (ROOT / "LICENSE").read_bytes())
    tree.file("usr/share/doc/bindery/THIRD-PARTY-LICENSES.txt", arguments.licences.read_bytes())
    tree.file("usr/share/doc/bindery/bindery.cdx.json", arguments.sbom.read_bytes())
    return tree


def blob(tree, content):
    digest = hashlib.sha256(content).hexdigest()
    tree.file(f"blobs/sha256/{digest}", content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def as_bytes(value):
    return json.dumps(value, indent=1, sort_keys=True).encode()


def image(arguments):
    layer = root_file_system(arguments).tar()
    (arguments.out / f"bindery-{arguments.version}-rootfs-{arguments.arch}.tar.gz").write_bytes(compressed(layer))
    for name, directory, entry, command in [
        ("bookkeeper", "/opt/bookkeeper", ["/bin/sh", "/opt/bookkeeper/scripts/entrypoint.sh"], ["bookie"]),
        ("pulsar", "/pulsar", [], ["bin/pulsar", "bookie"]),
    ]:
        tree = Tree()
        packed = compressed(layer)
        made = "1970-01-01T00:00:00Z" if not EPOCH else iso(EPOCH)
        config = as_bytes({
            "architecture": arguments.arch, "os": "linux", "created": made,
            "config": {
                "User": str(USER), "WorkingDir": directory, "Cmd": command,
                "Env": ["PATH=/usr/bin:/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
                "ExposedPorts": {"3181/tcp": {}, "8000/tcp": {}, "8080/tcp": {}},
                "Labels": {
                    "org.opencontainers.image.title": f"bindery, as a stand-in for the bookies of the image {name}",
                    "org.opencontainers.image.version": arguments.version,
                    "org.opencontainers.image.licenses": "Apache-2.0",
                    "org.opencontainers.image.source": "https://github.com/bindery/bindery",
                },
                **({"Entrypoint": entry} if entry else {}),
            },
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
            "history": [{"created": made, "created_by": "deploy/build"}],
        })
        kind = "application/vnd.oci.image."
        manifest = as_bytes({
            "schemaVersion": 2, "mediaType": kind + "manifest.v1+json",
            "config": {"mediaType": kind + "config.v1+json", **blob(tree, config)},
            "layers": [{"mediaType": kind + "layer.v1.tar+gzip", **blob(tree, packed)}],
        })
        tree.file("oci-layout", as_bytes({"imageLayoutVersion": "1.0.0"}))
        tree.file("index.json", as_bytes({
            "schemaVersion": 2, "mediaType": kind + "index.v1+json",
            "manifests": [{
                "mediaType": kind + "manifest.v1+json", **blob(tree, manifest),
                "platform": {"architecture": arguments.arch, "os": "linux"},
                "annotations": {"org.opencontainers.image.ref.name": f"bindery-{name}:{arguments.version}"},
            }],
        }))
        out = arguments.out / f"bindery-{name}-{arguments.version}-{arguments.arch}.oci.tar"
        out.write_bytes(tree.tar())
        print(f"{out}: {out.stat().st_size} bytes")


def iso(seconds):
    import datetime
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def chart(arguments):
    tree = Tree()
    base = HERE / "chart"
    for path in sorted(base.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.name == "Chart.yaml":
                content = content.replace(b"0.0.0", arguments.version.encode())
            tree.file(f"bindery/{path.relative_to(base)}", content)
    out = arguments.out / f"bindery-chart-{arguments.version}.tgz"
    out.write_bytes(compressed(tree.tar()))
    print(f"{out}: {out.stat().st_size} bytes")


def packages():
    """What is linked into the binary, without what only builds or tests it: name, version, source, licence, directory."""
    triple = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    triple = next(line.split()[1] for line in triple.splitlines() if line.startswith("host:"))
    metadata = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", triple],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout
    metadata = json.loads(metadata)
    by_id = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [package["id"] for package in metadata["packages"] if package["name"] == "bindery-cli"]
    seen = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for dependency in nodes[node]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return sorted((by_id[node] for node in seen), key=lambda package: (package["name"], package["version"]))


def sbom(arguments):
    components = [
        {
            "type": "library", "name": package["name"], "version": package["version"],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
            "licenses": [{"expression": package["license"]}] if package["license"] else [],
        }
        for package in packages() if package["source"]
    ]
    arguments.out.write_bytes(as_bytes({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": iso(EPOCH), "component": {
            "type": "application", "name": "bindery", "version": arguments.version,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        }},
        "components": components,
    }))


def licences(arguments):
    # Each text once, with the packages that come with it.
    by_text = {}
    for package in packages():
        if not package["source"]:
            continue
        directory = pathlib.Path(package["manifest_path"]).parent
        names = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")
        files = [file for file in directory.iterdir() if file.is_file() and file.name.upper().startswith(names)]
        name = f"{package['name']} {package['version']} ({package['license'] or 'see its text'})"
        for text in sorted({file.read_text(errors="replace").strip() for file in files}) or [""]:
            by_text.setdefault(text, []).append(name)
    parts = [f"{'=' * 100}\n" + "\n".join(names) + f"\n\n{text}\n" for text, names in by_text.items()]
    arguments.out.write_text("\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    path = pathlib.Path
    for name, work, options in [
        ("image", image, ["binary", "busybox", "licences", "sbom", "version", "arch", "out"]),
        ("chart", chart, ["version", "out"]),
        ("sbom", sbom, ["version", "out"]),
        ("licences", licences, ["out"]),
    ]:
        command = commands.add_parser(name)
        command.set_defaults(work=work)
        for option in options:
            command.add_argument(f"--{option}", required=True, type=str if option in ("version", "arch") else path)
    arguments = parser.parse_args()
    arguments.work(arguments)


if __name__ == "__main__":
    main()
