"""kubernetes.yaml, as fedpart cluster kubernetes writes it: what Compose has, by Kubernetes' schemas."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from command_line import fedpart, refused
from places import ROOT

from simulations.config.load import ExperimentConfig
from simulations.deployment.keys import make_keys

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
NODES = 4


@pytest.fixture
def documents(in_a_folder_of_its_own):
    result = fedpart("cluster", "kubernetes", "--nodes", NODES, "--image", "here/fedpart:1")
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(Path("kubernetes.yaml").read_text()))


def containers(documents):
    """By name of the pod's owner: of each pod its labels, and its first container with the pod."""
    pods = {d["metadata"]["name"]: d["spec"]["template"] for d in documents if "template" in d["spec"]}
    return {name: (pod["metadata"]["labels"], pod["spec"]) for name, pod in pods.items()}


def words(service, client):
    """The command of a service of Compose, as a process gets it."""
    command = service["command"]
    text = command[-1].removeprefix("exec ") if isinstance(command, list) else command
    return shlex.split(text.replace("$$CLIENT", client))


def test_the_processes_are_those_of_compose(documents):
    pods = containers(documents)
    wanted = {name for name, service in COMPOSE.items() if service.get("profiles") != ["operator"]}
    assert pods.keys() == wanted
    for name, (_, pod) in pods.items():
        assert pod["containers"][0]["command"] == words(COMPOSE[name], name[-1]), name


def test_every_container_has_bounds_and_no_rights_and_kubernetes_own_schemas_know_every_key(documents):
    for _, pod in containers(documents).values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"] and container["image"] == "here/fedpart:1"
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in documents:
        validate(document, "1.30", strict=True)


def test_every_process_has_the_secret_of_its_own_folder_of_keys(documents, tmp_path):
    make_keys(tmp_path / "keys", NODES)
    folders = {path.name for path in (tmp_path / "keys").iterdir()}
    mounted = set()
    for name, (_, pod) in containers(documents).items():
        secrets = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
        for container in pod["containers"]:
            (keys,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/keys"]
            own = "operator" if container["name"] in ("operator", "register") else name
            assert secrets[keys]["secretName"] == own
            mounted.add(own)
    assert mounted == folders - {"ca"}


def test_kustomize_makes_every_secret_of_the_files_of_its_folder(documents, tmp_path):
    make_keys(tmp_path / "keys", NODES)
    kustomization = yaml.safe_load(Path("kustomization.yaml").read_text())
    files = {file for secret in kustomization["secretGenerator"] for file in secret["files"]}
    made = {str(path.relative_to(tmp_path)) for path in (tmp_path / "keys").glob("[!c]*/*")}
    assert files == made | {str(p.relative_to(tmp_path)) for p in (tmp_path / "keys").glob("clientapp-*/*")}
    assert all(
        Path(file).parent.name == s["name"] for s in kustomization["secretGenerator"] for file in s["files"]
    )
    assert kustomization["resources"] == ["kubernetes.yaml"]
    assert kustomization["generatorOptions"]["disableNameSuffixHash"], "pods know secrets by these names"
    if shutil.which("kubectl"):
        make_keys(Path("keys"), NODES)
        said = subprocess.run(["kubectl", "kustomize", "."], stdout=subprocess.PIPE, text=True, check=True)
        kinds = [document["kind"] for document in yaml.safe_load_all(said.stdout)]
        assert kinds.count("Secret") == len(kustomization["secretGenerator"])
        assert len(kinds) == len(documents) + kinds.count("Secret")


def test_a_rayjob_has_the_run_and_pods_that_kubernetes_takes(in_a_folder_of_its_own):
    options = "--nodes", 3, "--gpus", 2, "--image", "here/fedpart:1", "--set", "rounds=7"
    result = fedpart("cluster", "rayjob", "quickstart", *options)
    assert result.exit_code == 0, result.output
    settings, volume, job = yaml.safe_load_all(Path("quickstart.rayjob.yaml").read_text())
    config = ExperimentConfig.from_dict(yaml.safe_load(settings["data"]["config.yaml"]))
    assert (config.rounds, config.engine, config.device) == (7, "ray", "cuda")
    subprocess.run(["bash", "-n"], input=settings["data"]["run.sh"], text=True, check=True)
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert {workers[key] for key in ("replicas", "minReplicas", "maxReplicas")} == {3}
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in (settings, volume):
        validate(document, "1.30", strict=True)
    for group in (cluster["headGroupSpec"], workers):
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "here/fedpart:1"
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        validate(pod | {"spec": group["template"]["spec"]}, "1.30", strict=True)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    (claim,) = [v for v in cluster["headGroupSpec"]["template"]["spec"]["volumes"] if v["name"] == "runs"]
    assert claim["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert f"--out /runs/{volume['metadata']['name']}\n" in settings["data"]["run.sh"].replace(")", "")


def reached(documents, pods, one, other):
    """Whether the policies let the first pod open the port of the second."""

    def chosen(selector, labels):
        rows = selector.get("matchExpressions", [])
        fits = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
        return fits and all(labels.get(row["key"]) in row["values"] for row in rows)

    def allowed(here, there, side, end):
        policies = [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]
        rules = [
            rule for spec in policies if chosen(spec["podSelector"], here) for rule in spec.get(side, [])
        ]
        peers = [peer["podSelector"] for rule in rules for peer in rule.get(end, [])]
        return any(chosen(peer, there) for peer in peers)

    mine, theirs = pods[one][0], pods[other][0]
    return allowed(mine, theirs, "egress", "to") and allowed(theirs, mine, "ingress", "from")


def test_pods_meet_as_containers_of_compose_do(documents):
    pods = containers(documents)
    for one in pods:
        for other in pods:
            superlink = other == "superlink" and not one.startswith(("superlink", "clientapp"))
            own = one.startswith("clientapp") and other == one.replace("clientapp", "supernode")
            assert reached(documents, pods, one, other) == (superlink or own), (one, other)


def test_what_no_file_is_written_for(in_a_folder_of_its_own):
    for words, says in {
        "kubernetes quickstart": "takes no configuration",
        "kubernetes --image a,b": "no name of an image",
        "rayjob": "Name one configuration",
        "rayjob quickstart --image a,b": "no name of an image",
        "rayjob quickstart --set method=scaffold": "clients keep files",
        "rayjob quickstart --out here": "leave --out out",
    }.items():
        refused(fedpart("cluster", *words.split()), says)
    assert not list(Path().iterdir())
