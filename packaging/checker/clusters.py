"""Manifests, chart and compose file against the schemas, and what the rules of a strict cluster would say of them."""
import json
import pathlib
import shutil
import subprocess
import tempfile

from . import tools
from .report import hold, run

HERE = pathlib.Path(__file__).resolve().parents[1]
KUBERNETES = HERE / "kubernetes"
VERSIONS = ("1.28", "1.33")
# Values that reach every branch of the templates.
CASES = {
    "defaults": [],
    "own files": ["--set-file", "federation.spec={spec}", "--set-file", "federation.networkKey={key}"],
    "tickets, no fedboot": [
        "--set", "membership=tickets,fedboot.enabled=false,nodes.share=false,nodes.divided=false,storageClassName=local",
        "--set", "nodes.data=csv:/data/ward.csv\\,label=outcome,nodes.dataVolume.hostPath.path=/srv/ward",
        "--set", "nodes.replicas=2,federation.tickets.fednode-node-1=one,networkPolicy.outside={{192.0.2.0/24}}",
    ],
    "tickets, fedboot": ["--set", "membership=tickets,podAnnotations.team=a,nodeSelector.edge=yes,imagePullSecrets[0].name=pull",
                         "--set", "nodes.env.FEDNODE_COMPRESSION=off,fedboot.env.FEDBOOT_QUOTA_MIB=64"],
    "no policy": ["--set", "networkPolicy.enabled=false,tolerations[0].operator=Exists"],
}
# As many runs as the job has pods.
EXPERIMENT = """data = "digits"
seeds = [1, 2, 3]
[set]
nodes = 2
rounds = 1
"data.samples_per_node" = 60
[grid]
algorithm = ["local", "fedavg"]
"training.learning_rate" = [0.02, 0.05]
"""
AS_JSON = "import json, sys, yaml; print(json.dumps([d for d in yaml.safe_load_all(open(sys.argv[1])) if d]))"


def documents(path):
    """Returns the documents of a YAML file."""
    return json.loads(run(tools.python(), "-c", AS_JSON, path))


def render(helm, *flags, namespace="fednode"):
    command = [helm, "template", "fednode", KUBERNETES / "chart", "--namespace", namespace, *flags]
    return run(*command)


def validate(path):
    """Holds a file to the schemas of an old and of a newer Kubernetes; unknown fields are errors. Returns its documents."""
    for version in VERSIONS:
        run(tools.python("kubernetes-validate"), "--quiet", "--strict", "-k", version, path)
    found = documents(path)
    for document in found:
        if document["kind"] in ("StatefulSet", "Job"):
            restricted(document)
    return found


def restricted(document):
    """Holds pods to the profile `restricted`, and to a read-only root."""
    name, pod = document["metadata"]["name"], document["spec"]["template"]["spec"]
    context = pod["securityContext"]
    hold(context["runAsNonRoot"] and context["seccompProfile"]["type"] == "RuntimeDefault", f"{name}: runs as root")
    hold(not pod["automountServiceAccountToken"], f"{name}: has a token of the cluster")
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container["securityContext"]
        hold(own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"] and own["capabilities"]["drop"] == ["ALL"],
             f"{name}: container {container['name']} may more than it needs")
        hold("memory" in container["resources"]["limits"], f"{name}: container {container['name']} has no limit")
    labels = document["spec"]["template"]["metadata"]["labels"].items()
    if document["kind"] == "Job":
        # Kubernetes selects the pods of a job by labels of its own.
        return
    hold(document["spec"]["selector"]["matchLabels"].items() <= labels, f"{name}: selects other pods than its own")


def chart(scratch):
    """Renders the chart with all kinds of values, and validates what comes out."""
    helm = tools.cluster_tool("helm")
    run(helm, "lint", "--strict", KUBERNETES / "chart")
    files = {"spec": scratch / "spec", "key": scratch / "key"}
    files["spec"].write_text('version = 2\nname = "a federation"\n\n[model]\nname = "cnn"\n')
    files["key"].write_text("0123456789abcdef" * 4 + "\n")
    count = 0
    for name, flags in CASES.items():
        path = scratch / "rendered.yaml"
        path.write_text(render(helm, *(flag.format(**files) for flag in flags)))
        found = validate(path)
        count += len(found)
        if name == "own files":
            [config] = [document for document in found if document["kind"] == "ConfigMap"]
            hold(config["data"]["federation.toml"].strip() == files["spec"].read_text().strip(), "the spec came out changed")
    wrong = subprocess.run([helm, "template", KUBERNETES / "chart", "--set", "membership=all"], capture_output=True, text=True)
    hold("must be `key` or `tickets`" in wrong.stderr, "a wrong value is taken")
    return f"{len(CASES)} sets of values, {count} documents, Kubernetes {' and '.join(VERSIONS)}"


def edge():
    """Returns the documents of an edge cluster whose pods have a ticket each."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(render(tools.cluster_tool("helm"), *(flag.format() for flag in CASES["tickets, no fedboot"])))
        file.flush()
        return documents(file.name)


def manifests():
    """Holds the plain manifests to the chart."""
    path = KUBERNETES / "manifests" / "fednode.yaml"
    found = validate(path)
    helm = tools.cluster_tool("helm")
    hold(run(KUBERNETES / "render", "--print", "--helm", helm) == path.read_text(),
         "manifests/fednode.yaml is not what the chart renders: run packaging/kubernetes/render")
    return f"{len(found)} documents, as the chart renders them"


def kustomize(folder):
    """Builds a kustomization with the files that a person puts there; returns the documents."""
    kubectl = tools.cluster_tool("kubectl")
    path = folder / "built.yaml"
    path.write_text(run(kubectl, "kustomize", folder))
    return validate(path)


def hold_names(found, *wanted):
    """Holds documents to have the objects that are named as kind and name."""
    names = {(document["kind"], document["metadata"]["name"]) for document in found}
    for kind, name in wanted:
        hold((kind, name) in names, f"there is no {kind} {name}")


def federation(folder):
    """Builds the kustomization of a federation; returns the documents."""
    found = kustomize(folder)
    hold_names(found, ("Secret", "fednode-network"), ("ConfigMap", "fednode-federation"), ("Namespace", "fednode"))
    return found


def experiment(scratch, fednode):
    """Builds the kustomization of an experiment, and plays what its pods would play, one after the other."""
    folder = scratch / "experiment"
    shutil.copytree(KUBERNETES / "experiment", folder)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    found = kustomize(folder)
    hold_names(found, *((kind, "fednode-experiment") for kind in ("Namespace", "ConfigMap", "PersistentVolumeClaim", "Job")))
    [job] = [document["spec"] for document in found if document["kind"] == "Job"]
    [pod] = job["template"]["spec"]["containers"]
    [jobs] = [entry["value"] for entry in pod["env"] if entry["name"] == "JOBS"]
    hold(job["completionMode"] == "Indexed" and jobs == str(job["completions"]), "JOBS is not the number of pods")
    places = {"/usr/bin/fednode": fednode, "/experiment/": f"{folder}/", "/runs": folder / "jobs"}
    [script] = pod["args"]
    for place, here in places.items():
        hold(place in script, f"the pods use no {place}")
        script = script.replace(place, str(here))
    for index in range(job["completions"]):
        env = {"JOB_COMPLETION_INDEX": str(index), "JOBS": jobs, "THREADS": "1"}
        run(*pod["command"], script, env=env)
    run(fednode, "simulate", folder / "experiment.toml", "--out", folder / "plain", "--threads", "1", "--run", "1/1")
    tables = [table(folder / name) for name in ("jobs", "plain")]
    hold(tables[0] == tables[1], "the pods' table is not that of a single job")
    return f"{len(found)} documents, Kubernetes {' and '.join(VERSIONS)}; {jobs} pods, same table as one job's"


def table(folder):
    """Returns the rows of an experiment's table, without times."""
    rows = json.loads((folder / "table.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if key != "wall_seconds"} for row in rows]


def compose():
    run(tools.python("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", HERE / "compose.yaml")
    [document] = documents(HERE / "compose.yaml")
    for name, service in document["services"].items():
        hold(service["read_only"] and service["cap_drop"] == ["ALL"], f"{name} may more than it needs")
    return f"{len(document['services'])} services"


def as_pods(document, federation):
    """Returns the services of a compose file as if each were a StatefulSet of one pod."""
    found = []
    for name, service in document["services"].items():
        program = service.get("entrypoint", ["/usr/bin/fednode"])
        container = {
            "name": program[0].rsplit("/", 1)[-1], "command": program + service["command"], "workingDir": "/state",
            "env": [{"name": key, "value": value} for key, value in service["environment"].items()],
            "readinessProbe": {"exec": {"command": service["healthcheck"]["test"][1:]}, "timeoutSeconds": 10},
            "volumeMounts": [{"name": "federation", "mountPath": "/federation", "readOnly": True},
                             {"name": "state", "mountPath": "/state"}],
        }
        hold(service["volumes"] == ["./federation:/federation:ro", f"{name}:/state"], f"{name} has other volumes")
        pod = {"containers": [container], "securityContext": {}, "terminationGracePeriodSeconds": 60,
               "volumes": [{"name": "federation", "bind": str(federation)}]}
        found.append({"kind": "StatefulSet", "metadata": {"name": name}, "spec": {
            "serviceName": name, "replicas": 1, "template": {"spec": pod},
            "volumeClaimTemplates": [{"metadata": {"name": "state"}}]}})
    return found


def versions(version):
    """Holds the versions in these files to that of Cargo.toml."""
    places = {
        "kubernetes/chart/Chart.yaml": [f"version: {version}\n", f'appVersion: "{version}"\n'],
        "kubernetes/manifests/kustomization.yaml": [f"newTag: {version}\n"],
        "kubernetes/experiment/kustomization.yaml": [f"newTag: {version}\n"],
        "kubernetes/experiment/job.yaml": [f'image: "fednode:{version}"\n'],
        "compose.yaml": [f"FEDNODE_VERSION:-{version}}}"],
    }
    for name, texts in places.items():
        for text in texts:
            hold(text in (HERE / name).read_text(), f"packaging/{name} lacks `{text.strip()}`")
    return version
