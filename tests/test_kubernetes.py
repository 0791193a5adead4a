"""The Helm chart: rendered by Helm, valid for three versions of Kubernetes, and its pods run as processes."""

from __future__ import annotations

import base64
import copy
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from end_to_end import Cell, Kernel
from end_to_end.autoscaler import Autoscaler
from end_to_end.baton_wheel import build_baton_wheel
from end_to_end.chart import (
    CHART,
    NAMESPACE,
    ROOT,
    VERSIONS,
    Manifest,
    lint,
    named,
    notes,
    pod_templates,
    render,
    validate,
)
from end_to_end.guides import GUIDES, blocks
from end_to_end.hub import jupyter_hub
from end_to_end.images import Images, images
from end_to_end.place import MARK, OUTER_ENVIRONMENT, Place
from end_to_end.pods import Node
from end_to_end.ports import free_port
from end_to_end.service import end, run_binary
from end_to_end.tls import Tls
from end_to_end.waiting import wait_until

EXAMPLES = ROOT / "deploy/kubernetes/examples"
FILES = [*sorted((ROOT / "tests/kubernetes").glob("*.yaml")), EXAMPLES / "baton.yaml"]
GUIDE = GUIDES / "kubernetes.md"
CASES: dict[str, dict[str, Any]] = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
IN_THE_GUIDE = [block for text in blocks(GUIDE, "yaml") if "kind" not in (block := yaml.safe_load(text))]
CASES |= {f"guide-{number}": CASES["default"] | values for number, values in enumerate(IN_THE_GUIDE)}

every_case = pytest.mark.parametrize("values", CASES.values(), ids=CASES)


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for manifest in manifests:
        for template in pod_templates(manifest):
            yield manifest["metadata"]["name"], template


def container(template: Manifest) -> Manifest:
    [only] = template["spec"]["containers"]
    assert isinstance(only, dict)
    return only


@every_case
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(values: dict[str, Any], version: str) -> None:
    assert lint(values, version) == []
    for manifest in render(values, version):
        validate(manifest, version)


def test_a_manifest_with_a_mistake_is_not_valid() -> None:
    import jsonschema
    import kubernetes_validate

    manifests = render(CASES["every-gpu"])
    for kind, name, path, error in [
        ("StatefulSet", "baton-broker", ("spec", "template", "spec", "hostUser"), kubernetes_validate.ValidationError),
        ("ScaledJob", "baton-whole", ("spec", "pollInterval"), jsonschema.ValidationError),
        (
            "ScaledJob",
            "baton-whole",
            ("spec", "jobTargetRef", "template", "spec", "hostUser"),
            (kubernetes_validate.ValidationError, jsonschema.ValidationError),
        ),
        ("ServiceMonitor", "baton-broker", ("spec", "selectors"), jsonschema.ValidationError),
    ]:
        wrong = copy.deepcopy(named(manifests, kind, name))
        part = wrong
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = 1
        with pytest.raises(error):
            validate(wrong, VERSIONS[-1])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tls": {"secretName": ""}}, "Name a certificate in tls.secretName"),
        ({"images": {"worker": ""}}, "Set images.broker and images.worker"),
        ({"broker": {"replicas": 2}}, "More than one broker needs PostgreSQL"),
        (
            {"broker": {"replicas": 2, "postgresql": {"url": "postgres://x"}}, "networkPolicy": {"enabled": False}},
            "All brokers must see the same chunks",
        ),
        ({"broker": {"chunkStore": "s3://x"}}, "networkPolicy.brokerEgress"),
        (
            {"broker": {"people": True, "postgresql": {"url": "postgres://x"}}, "networkPolicy": {"enabled": False}},
            "broker.people",
        ),
        ({"pools": {"gpu": {"settings": {"network": "egress"}}}}, "networkPolicy.workerEgress"),
        ({"pool": {}}, "pool"),
        ({"pools": {"gpu": {"sandbox": "off"}}}, "sandbox"),
        ({"pools": {"gpu": {"idleFor": "5m"}}}, "idleFor"),
        ({"pools": {"The_GPU": {}}}, "The_GPU"),
        ({"pools": {"gpu": {"idle": "soon"}}}, "idle"),
    ],
)
def test_values_that_cannot_work_are_refused(change: dict[str, Any], why: str) -> None:
    import helm_python

    values = copy.deepcopy(CASES["default"])
    for key, part in change.items():
        values[key] = values.get(key, {}) | part
    with pytest.raises(helm_python.HelmError, match=re.escape(why)):
        render(values)


@every_case
def test_the_settings_in_the_manifests_are_valid(values: dict[str, Any], place: Place) -> None:
    files = {
        key: text
        for manifest in render(values)
        if manifest["kind"] == "ConfigMap"
        for key, text in manifest["data"].items()
        if key != "courses.toml"
    }
    assert len(files) == 1 + len(values.get("pools", {"gpu": None}))
    for name, text in files.items():
        path = place.folder / name
        path.write_text(text)
        checked = run_binary(place, "config", "check", str(path))
        assert checked.returncode == 0, f"{text}\n{checked.stderr}"


@every_case
def test_what_the_manifests_name_is_there(values: dict[str, Any]) -> None:
    """Volumes, accounts, selectors, files in settings: everything except Secrets and claims that others create."""
    manifests = render(values)
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    templates = dict(pods(manifests))
    labels = [template["metadata"]["labels"] for template in templates.values()]
    for name, template in templates.items():
        spec = template["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in names
        claims = (
            [named(manifests, "StatefulSet", name)["spec"].get("volumeClaimTemplates", [])] if "broker" in name else []
        )
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for each in claims for claim in each}
        assert {mount["name"] for mount in container(template)["volumeMounts"]} == volumes
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
        for claim in spec.get("resourceClaims", []):
            assert ("ResourceClaimTemplate", claim["resourceClaimTemplateName"]) in names
            assert {"name": claim["name"]} in container(template)["resources"]["claims"]
        # Each file in Baton's settings is in a volume that contains it.
        mounts = [mount["mountPath"] for mount in container(template)["volumeMounts"]]
        [config] = [each["value"] for each in container(template)["env"] if each["name"] == "BATON_CONFIG"]
        configured = [
            manifest["data"][Path(config).name]
            for manifest in manifests
            if manifest["kind"] == "ConfigMap" and Path(config).name in manifest["data"]
        ]
        [text] = configured
        for path in re.findall(r'_(?:file|folder|key|certificate) = "([^"]+)"', text):
            assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path
        for item in (item for volume in spec["volumes"] for item in volume.get("secret", {}).get("items", [])):
            assert f'/{item["path"]}"' in text
    for manifest in manifests:
        selector = manifest["spec"].get("podSelector", manifest["spec"].get("selector")) if "spec" in manifest else None
        if manifest["kind"] in ("Service", "NetworkPolicy", "PodDisruptionBudget", "StatefulSet"):
            assert selector
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= found.items() for found in labels), manifest["metadata"]["name"]


@every_case
def test_pods_have_no_more_rights_than_they_need(values: dict[str, Any]) -> None:
    """The restricted level of Pod Security, except for what a worker's sandbox needs."""
    manifests = render(values)
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & {each["kind"] for each in manifests}
    sandboxed = 0
    for name, template in pods(manifests):
        spec, security = template["spec"], container(template)["securityContext"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not any("hostPath" in volume for volume in spec["volumes"])
        profile = spec["securityContext"]["seccompProfile"]["type"]
        if security.get("procMount") == "Unmasked":
            sandboxed += 1
            # Kubernetes allows the one only with the other.
            assert spec["hostUsers"] is False
            assert profile == "Unconfined"
        else:
            assert profile == "RuntimeDefault", name
            assert "hostUsers" not in spec
    not_sandboxed = [pool for pool in values.get("pools", {}).values() if pool.get("sandbox") == "none"]
    assert sandboxed == len(values.get("pools", {"gpu": {}})) - len(not_sandboxed)
    assert ("WARNING" in notes(values)) == bool(not_sandboxed)


@every_case
def test_a_worker_has_time_to_hand_over_what_it_holds(values: dict[str, Any]) -> None:
    manifests = render(values)
    settings = named(manifests, "ConfigMap", "baton-workers")["data"]
    for name, template in pods(manifests):
        if name == "baton-broker":
            continue
        text = settings[f"{name.removeprefix('baton-')}.toml"]
        seconds = [int(number) for number in re.findall(r'(?:stop_grace|broker_patience) = "(\d+)s"', text)]
        assert len(seconds) == 2
        assert template["spec"]["terminationGracePeriodSeconds"] >= sum(seconds) + 60


def test_gpus_are_named_as_the_values_say() -> None:
    manifests = render(CASES["every-gpu"])
    limits = {
        name.removeprefix("baton-"): container(template)["resources"].get("limits", {})
        for name, template in pods(manifests)
    }
    gpus = {name: {key: n for key, n in each.items() if "nvidia" in key} for name, each in limits.items()}
    assert gpus == {
        "broker": {},
        "whole": {"nvidia.com/gpu": 1},
        "shared": {"nvidia.com/gpu.shared": 1},
        "mig": {"nvidia.com/mig-1g.10gb": 1},
        "claimed": {},
        "processors": {},
    }
    for version, api in {"1.33": "resource.k8s.io/v1beta2", "1.35": "resource.k8s.io/v1"}.items():
        claim = named(render(CASES["every-gpu"], version), "ResourceClaimTemplate", "baton-claimed")
        assert claim["apiVersion"] == api
        [request] = claim["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["count"] == 2
    assert named(manifests, "StatefulSet", "baton-mig")["spec"]["replicas"] == 7
    # An upgrade of the chart must not reset a number that another component sets.
    assert "replicas" not in named(manifests, "StatefulSet", "baton-shared")["spec"]


def test_keda_reads_what_the_broker_answers() -> None:
    manifests = render(CASES["every-gpu"])
    answer = json.loads((ROOT / "docs/reference/openapi.json").read_text())
    scale = answer["components"]["schemas"]["Scale"]["properties"]
    read = {}
    for manifest in manifests:
        if manifest["kind"] not in ("ScaledJob", "ScaledObject"):
            continue
        [trigger] = manifest["spec"]["triggers"]
        asked = trigger["metadata"]
        pool = manifest["metadata"]["labels"]["baton/pool"]
        assert asked["url"] == f"https://baton-broker.{NAMESPACE}.svc:8470/v1/scale/{pool}"
        assert asked["valueLocation"] in scale
        # One worker per unit of the number.
        assert (asked["targetValue"], asked["authMode"]) == ("1", "bearer")
        named(manifests, "TriggerAuthentication", trigger["authenticationRef"]["name"])
        read[manifest["kind"]] = asked["valueLocation"]
    assert read == {"ScaledJob": "processes", "ScaledObject": "wanted"}
    for pool in ("whole", "claimed", "processors"):
        job = named(manifests, "ScaledJob", f"baton-{pool}")["spec"]
        # The broker knows the minimum. A running Job is left alone when the chart changes.
        assert (job["minReplicaCount"], job["scalingStrategy"]["strategy"]) == (0, "default")
        assert job["rollout"] == {"strategy": "gradual"}
    shared = named(manifests, "ScaledObject", "baton-shared")["spec"]
    assert shared["cooldownPeriod"] == 600
    # Kubernetes ends workers of these pools, so they do not leave by themselves, and are not restarted.
    broker = named(manifests, "ConfigMap", "baton-broker")["data"]["broker.toml"]
    idle = dict(re.findall(r'name = "(\w+)"\nprovider = "external"\n(?:.*\n)*?idle = "(\w+)"', broker))
    assert idle == {"whole": "10m", "shared": "never", "mig": "never", "claimed": "10m", "processors": "10m"}


def test_a_pool_s_pods_get_its_own_token_and_no_key() -> None:
    manifests = render(CASES["default"])
    tokens = named(manifests, "Secret", "baton-tokens")
    assert set(tokens["data"]) == {"operator", "monitor", "pool-gpu"}
    values = [base64.b64decode(value) for value in tokens["data"].values()]
    assert len(set(values)) == 3
    assert min(map(len, values)) >= 32
    worker = dict(pods(manifests))["baton-gpu"]["spec"]
    given = {
        (volume["secret"]["secretName"], item["key"])
        for volume in worker["volumes"]
        if "secret" in volume
        for item in volume["secret"]["items"]
    }
    assert given == {("baton-tokens", "pool-gpu"), ("baton-tls", "ca.crt")}


def test_people_get_tokens_without_a_hub(place: Place) -> None:
    [first] = dict(pods(render(CASES["people"])))["baton-broker"]["spec"]["initContainers"]
    assert "baton people add" in notes(CASES["people"])
    file = place.folder / "people.toml"
    path_in_pod = "/var/lib/baton/people.toml"
    assert path_in_pod in first["command"]
    command = [str(file) if word == path_in_pod else word for word in first["command"]]
    for added in ("ada", "bob"):
        # As the kubelet changes files on a volume with `fsGroup`.
        file.touch(mode=0o660)
        subprocess.run(command, check=True)
        added_to = run_binary(place, "people", "add", added, "--people-file", str(file))
        assert added_to.returncode == 0, added_to.stderr
    listed = run_binary(place, "people", "list", "--people-file", str(file)).stdout
    assert "ada" in listed
    assert "bob" in listed


def node_of(place: Place, made: Images | None = None) -> Node:
    values = copy.deepcopy(CASES["default"]) | {"poolDefaults": {"idle": "1s", "targetWait": "1s", "slots": 1}}
    # Sockets are in it, and their paths must be short.
    folder = Path(tempfile.mkdtemp(dir=place.folder, prefix=""))
    return Node(place, folder, render(values), Tls(folder), "baton-tls", free_port(), made)


def autoscaler_of(node: Node) -> Autoscaler:
    """What KEDA would read and create."""
    job = named(node.manifests, "ScaledJob", "baton-gpu")["spec"]
    [trigger] = job["triggers"]
    authentication = named(node.manifests, "TriggerAuthentication", trigger["authenticationRef"]["name"])
    [secret] = authentication["spec"]["secretTargetRef"]
    return Autoscaler(
        url=trigger["metadata"]["url"].replace(f"https://baton-broker.{NAMESPACE}.svc:8470", node.broker),
        token=node.secret(secret["name"], secret["key"]),
        most=job["maxReplicaCount"],
        create=lambda name: node.run(name, job["jobTargetRef"]["template"]),
        value_location=trigger["metadata"]["valueLocation"],
    )


def test_the_pods_of_the_chart_run_a_notebooks_cell(place: Place, new_kernel: Callable[..., Kernel]) -> None:
    """With the rendered files, tokens, trigger and arguments."""
    node = node_of(place)
    autoscaler = autoscaler_of(node)
    broker = node.run("baton-broker-0", dict(pods(node.manifests))["baton-broker"])
    try:
        wait_until(autoscaler.scale, "the broker answers")
        autoscaler.poll()
        assert autoscaler.pods == []
        access = {
            "BATON_BROKER_ADDRESS": node.broker,
            "BATON_CA_FILE": str(node.tls.ca_file),
            "BATON_TOKEN": node.secret("baton-tokens", "operator"),
        }
        kernel = new_kernel(at=node.place, **access)
        kernel.run("values = [1]").ok()
        cell = kernel.begin("%%gpu\nvalues.append(int(input()))\nvalues")

        def polled() -> Cell:
            autoscaler.poll()
            cell.kernel.pump(0.05)
            return cell

        wait_until(lambda: polled().questions, "the cell asks")
        # As in the chart's notes.
        config = node.folder / "baton-broker-0/config/broker.toml"
        told = run_binary(place, "pools", BATON_CONFIG=str(config))
        assert told.returncode == 0, told.stderr
        assert "baton-worker-0" in told.stdout
        kernel.client.input("2")
        wait_until(lambda: polled().done, "the cell ends")
        assert cell.finish().ok().value == "[1, 2]"
        assert len(autoscaler.pods) == 1
        assert autoscaler.pods[0].wait(timeout=60) == 0
    finally:
        autoscaler.close()
        end([broker])


ELSEWHERE = {"broker": ["BASE"], "notebook": ["PIP"], "worker": []}
"""Arguments of each image that only a machine without a registry needs."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """All three images, from Baton's wheel and the wheels that it needs."""
    context = tmp_path_factory.mktemp("context")
    wheels = context / "wheels"
    build_baton_wheel(wheels)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", wheels),
            *("-r", ROOT / "requirements/runtime.txt"),
        ],
        env=OUTER_ENVIRONMENT,
        check=True,
        timeout=400,
    )
    with images(tmp_path_factory.mktemp("images")) as made:
        made.make_base()
        # The commands of the guide, with a base made here and no network.
        here = {"BASE": "localhost/base", "NOTEBOOK": "localhost/notebook", "PIP": "--no-index"}
        assert "`--build-arg PIP=--no-index`" in GUIDE.read_text()
        commands = [line for text in blocks(GUIDE, "console") for line in text.splitlines() if "buildah build" in line]
        for command in commands:
            [name] = re.findall(r"Containerfile\.(\w+)", command)
            names = {*re.findall(r"--build-arg (\w+)=", command), *ELSEWHERE[name]}
            made.build(name, context, **{name: here[name] for name in sorted(names)})
        assert len(commands) == len(ELSEWHERE)
        yield made


IN_THE_NOTEBOOK = """
import sys
from jupyter_client.manager import run_kernel
told = []
with run_kernel(kernel_name="baton", startup_timeout=120) as client:
    client.execute_interactive("values = [1]", timeout=120)
    code = "%%gpu\\nimport os\\nvalues.append(2)\\nprint(values, os.path.exists('/etc/baton/token'))"
    reply = client.execute_interactive(code, timeout=300, output_hook=told.append)
    assert reply["content"]["status"] == "ok", reply
    client.execute_interactive("print(values)", timeout=120, output_hook=told.append)
print([each["content"]["text"] for each in told if each["msg_type"] == "stream"])
"""


@pytest.mark.root("make a Debian and map the ids of containers")
@pytest.mark.timeout(3600)  # the images are made first
def test_the_images_run_a_cell_in_pods_as_the_chart_makes_them(place: Place, made: Images) -> None:
    """Broker, worker and notebook in containers with the security context of the pods: bubblewrap works there."""
    node = node_of(place, made)
    autoscaler = autoscaler_of(node)
    broker = node.run("baton-broker-0", dict(pods(node.manifests))["baton-broker"])
    home, authority = node.folder / "home", node.folder / "authority"
    for folder in (home, home / "course", authority):
        folder.mkdir()
        folder.chmod(0o777)
    (authority / "ca.crt").write_bytes(node.tls.ca_file.read_bytes())
    student = {
        MARK: str(place.folder),
        "HOME": "/home/student",
        "BATON_BROKER_ADDRESS": node.broker,
        "BATON_CA_FILE": "/etc/baton/authority/ca.crt",
        "BATON_TOKEN": node.secret("baton-tokens", "operator"),
    }
    log = node.folder / "notebook.log"
    mounts = {"/home/student": home, "/etc/baton/authority": authority}
    try:
        wait_until(autoscaler.scale, "the broker answers")
        python = ["/opt/baton/bin/python", "-c", IN_THE_NOTEBOOK]
        notebook = made.start("notebook", ["env", "-C", "/home/student/course", *python], mounts, student, log)

        def is_done() -> bool:
            autoscaler.poll()
            return notebook.poll() is not None

        wait_until(is_done, "the notebook ends", 600)
        logs = {path.name: path.read_text() for path in node.folder.glob("*.log")}
        assert notebook.returncode == 0, logs
        assert str(["[1, 2] False\n", "[1, 2]\n"]) in logs["notebook.log"], logs
        assert len(autoscaler.pods) == 1
        # Its Job is complete.
        assert autoscaler.pods[0].wait(timeout=60) == 0
        broker.terminate()
        assert broker.wait(timeout=60) == 0
    finally:
        autoscaler.close()
        end([broker])


def test_the_two_examples_fit_together() -> None:
    ours = render(CASES["baton"])
    theirs = yaml.safe_load((EXAMPLES / "zero-to-jupyterhub.yaml").read_text())
    address = f"https://baton-broker.{NAMESPACE}.svc:8470"
    assert theirs["hub"]["services"]["baton"]["url"] == address
    student = theirs["singleuser"]
    assert student["extraEnv"]["BATON_BROKER_ADDRESS"] == address
    assert address in named(ours, "ConfigMap", "baton-workers")["data"]["gpu.toml"]
    [volume], [mount] = student["storage"]["extraVolumes"], student["storage"]["extraVolumeMounts"]
    assert volume["secret"]["secretName"] == CASES["baton"]["tls"]["secretName"]
    assert student["extraEnv"]["BATON_CA_FILE"] == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
    broker = named(ours, "StatefulSet", "baton-broker")["spec"]["template"]
    [rule] = student["networkPolicy"]["egress"]
    assert rule["to"][0]["podSelector"]["matchLabels"].items() <= broker["metadata"]["labels"].items()
    assert broker["metadata"]["labels"]["hub.jupyter.org/network-access-hub"] == "true"
    # Where that chart keeps the token that it creates for a service of this name.
    [hub] = [volume["secret"] for volume in broker["spec"]["volumes"] if volume["name"] == "hub"]
    assert (hub["secretName"], hub["items"][0]["key"]) == ("hub", "hub.services.baton.apiToken")
    # The network policy of the broker admits its pods, because they have this label.
    policy = named(ours, "NetworkPolicy", "baton-broker")["spec"]
    assert {"podSelector": {"matchLabels": {"app": "jupyterhub"}}} in policy["ingress"][0]["from"]


AS_ZERO_TO_JUPYTERHUB = """
import json
values = json.loads({values!r})
# What the chart's jupyterhub_config.py does with these values; its Hub makes the token.
services = [dict(service, name=name) for name, service in values["hub"]["services"].items()]
for service in services:
    [token] = [known["api_token"] for known in c.JupyterHub.services if known["name"] == service["name"]]
    service.update(api_token=token, url="BROKER")
others = [known for known in c.JupyterHub.services if known["name"] not in values["hub"]["services"]]
c.JupyterHub.services = [*services, *others]
roles = [dict(role, name=name) for name, role in values["hub"]["loadRoles"].items()]
c.JupyterHub.load_roles = [*roles, *(role for role in c.JupyterHub.load_roles if role["name"] == "tests")]
for section, settings in values["hub"]["config"].items():
    for name, value in settings.items():
        if name == "load_groups":
            value = {{group: c.JupyterHub.load_groups[group] for group in value}}
        setattr(c[section], name, value)
c.ConfigurableHTTPProxy.command = [*c.ConfigurableHTTPProxy.command, *values["proxy"]["chp"]["extraCommandLineFlags"]]
"""


def test_a_hub_with_the_values_of_the_example_runs_a_students_cell() -> None:
    values = yaml.safe_load((EXAMPLES / "zero-to-jupyterhub.yaml").read_text())
    with jupyter_hub(AS_ZERO_TO_JUPYTERHUB.format(values=json.dumps(values))) as hub:
        ada = hub.notebook("ada")
        assert ada.run("%%gpu\nprint('on the worker')") == "on the worker\n"
        ada.close()
        with hub.signed_in("ada") as browser:
            browser.get("/services/baton/")  # signs in with the Hub
            page = browser.get("/services/baton/")
        assert page.is_success
        assert page.url.path == "/services/baton/"
        assert "ml101" in page.text


def test_the_guide_knows_all_values() -> None:
    """The top-level values; those below are explained in the file itself."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = GUIDE.read_text()
    for key in values:
        assert f"`{key}" in text, key
