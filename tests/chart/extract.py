#!/usr/bin/env python3
"""Makes the schemas in tests/chart/schemas of what Kubernetes itself has, from its OpenAPI file.

    tests/chart/extract.py [SWAGGER]

SWAGGER is the file api/openapi-spec/swagger.json of the Go module k8s.io/kubernetes; without it `go` fetches the module. Only the
kinds of the chart are taken, without descriptions. A schema is strict: what is not in it is refused. Volumes and what a pod has for others
than us are left out, or the file of StatefulSet would be five times as large: a chart that uses one of them adds it to KEPT.

The schemas of other kinds are written by hand: certificate, servicemonitor, prometheusrule.
"""

import json
import pathlib
import subprocess
import sys

MODULE = "k8s.io/kubernetes@v1.36.3"
HERE = pathlib.Path(__file__).parent / "schemas"
KINDS = ["core.v1.ConfigMap", "core.v1.Service", "core.v1.ServiceAccount", "apps.v1.StatefulSet", "policy.v1.PodDisruptionBudget",
         "networking.v1.NetworkPolicy"]

# Of definitions with many properties the ones that are kept.
KEPT = {
    "core.v1.Volume": "name configMap secret emptyDir projected csi persistentVolumeClaim",
    "core.v1.PodSpec": "affinity automountServiceAccountToken containers enableServiceLinks imagePullSecrets nodeSelector priorityClassName "
                       "securityContext serviceAccountName terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes",
    "core.v1.Container": "args command env image imagePullPolicy livenessProbe name ports readinessProbe resources securityContext "
                         "startupProbe volumeMounts",
    "core.v1.Probe": "failureThreshold httpGet periodSeconds timeoutSeconds",
    "meta.v1.ObjectMeta": "annotations labels name namespace",
}
# What the file describes as a string, and what it takes.
SPECIAL = {
    "util.intstr.IntOrString": {"type": ["integer", "string"]},
    "api.resource.Quantity": {"type": ["number", "string"]},
    "meta.v1.Time": {"type": "string"},
}
# What the file says in words only. Of a list its elements.
VALUES = {
    "core.v1.Container": {"imagePullPolicy": "Always IfNotPresent Never"},
    "core.v1.ContainerPort": {"protocol": "TCP UDP SCTP"},
    "core.v1.HTTPGetAction": {"scheme": "HTTP HTTPS"},
    "core.v1.PersistentVolumeClaimSpec": {"accessModes": "ReadWriteOnce ReadWriteOncePod"},
    "core.v1.PodSecurityContext": {"fsGroupChangePolicy": "OnRootMismatch Always"},
    "core.v1.SeccompProfile": {"type": "RuntimeDefault Localhost Unconfined"},
    "core.v1.ServiceSpec": {"type": "ClusterIP"},
    "core.v1.Toleration": {"effect": "NoSchedule PreferNoSchedule NoExecute", "operator": "Exists Equal Lt Gt"},
    "core.v1.TopologySpreadConstraint": {"whenUnsatisfiable": "DoNotSchedule ScheduleAnyway"},
    "apps.v1.StatefulSetSpec": {"podManagementPolicy": "OrderedReady Parallel"},
    "apps.v1.StatefulSetUpdateStrategy": {"type": "RollingUpdate OnDelete"},
    "networking.v1.NetworkPolicySpec": {"policyTypes": "Ingress Egress"},
}


def short(name):
    """`io.k8s.api.core.v1.Service` as `core.v1.Service`."""
    for prefix in ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", "io.k8s.apimachinery.pkg."):
        if name.startswith(prefix):
            return name[len(prefix):]
    return name


def reduced(schema, name, wanted):
    """A schema with what decides about a manifest alone. Adds to `wanted` what it refers to."""
    if "$ref" in schema:
        target = short(schema["$ref"].rsplit("/", 1)[1])
        wanted.append(target)
        return {"$ref": f"#/definitions/{target}"}
    small = {key: schema[key] for key in ("type", "enum", "required") if key in schema}
    if "items" in schema:
        small["items"] = reduced(schema["items"], "", wanted)
    if isinstance(schema.get("additionalProperties"), dict):
        small["additionalProperties"] = reduced(schema["additionalProperties"], "", wanted)
    if "properties" in schema:
        # The status is the cluster's to write.
        names = KEPT[name].split() if name in KEPT else [key for key in schema["properties"] if key != "status"]
        small["properties"] = {key: reduced(schema["properties"][key], "", wanted) for key in names}
        small["additionalProperties"] = False
    for key, values in VALUES.get(name, {}).items():
        property = small["properties"][key]
        property.get("items", property)["enum"] = values.split()
    return small


def of_kind(kind, definitions):
    """The schema of a kind, which holds all that it refers to."""
    top = definitions[kind]
    wanted = []
    schema = reduced(top, kind, wanted)
    found = {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = SPECIAL.get(name) or reduced(definitions[name], name, wanted)
    group = top["x-kubernetes-group-version-kind"][0]
    version = "/".join(filter(None, [group["group"], group["version"]]))
    schema["properties"]["apiVersion"] = {"const": version}
    schema["properties"]["kind"] = {"const": group["kind"]}
    schema["required"] = ["apiVersion", "kind", "metadata"]
    schema["definitions"] = dict(sorted(found.items()))
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def written(value, depth=0):
    """JSON in which a definition, and a property of a kind, has one line."""
    if depth == 2 or not isinstance(value, dict):
        return json.dumps(value)
    lines = (f"{' ' * depth}{json.dumps(key)}: {written(inner, depth + 1)}" for key, inner in value.items())
    return "{\n" + ",\n".join(lines) + "}"


def main():
    swagger = sys.argv[1] if len(sys.argv) > 1 else None
    if not swagger:
        said = subprocess.run(["go", "mod", "download", "-json", MODULE], check=True, capture_output=True, text=True, cwd="/")
        swagger = json.loads(said.stdout)["Dir"] + "/api/openapi-spec/swagger.json"
    with open(swagger, encoding="utf-8") as file:
        definitions = {short(name): found for name, found in json.load(file)["definitions"].items()}
    for kind in KINDS:
        path = HERE / (kind.rsplit(".", 1)[1].lower() + ".json")
        path.write_text(written(of_kind(kind, definitions)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
