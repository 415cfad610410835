#!/usr/bin/env python3
"""Looks at what the chart renders. tests/chart/run calls it, with what `helm` rendered as a JSON list of objects.

    tests/chart/look.py WHAT RENDERED [ARGUMENT…]

WHAT is one of the functions below that begin with `look_`. What it prints is what is wrong, unless it is asked for something; it ends
with 0 if nothing is.
"""

import json
import re
import sys
import tomllib

ROOT = __file__.rsplit("/", 3)[0]


class Rendered:
    """The objects of one rendering."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.all = json.load(file)

    def of_kind(self, kind):
        return [one for one in self.all if one["kind"] == kind]

    @property
    def stateful_set(self):
        (found,) = self.of_kind("StatefulSet")
        return found

    @property
    def pod(self):
        return self.stateful_set["spec"]["template"]

    @property
    def container(self):
        (found,) = self.pod["spec"]["containers"]
        return found

    @property
    def ports(self):
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def settings(self):
        (found,) = self.of_kind("ConfigMap")
        return found["data"]["holdfastd.toml"]


def known_settings():
    """The keys of deploy/config/node.toml by table, those in comments too; the empty name is the top of the file."""
    keys, table = {"": set()}, ""
    with open(f"{ROOT}/deploy/config/node.toml", encoding="utf-8") as file:
        for line in file:
            if found := re.match(r"\[(\w+)\]$", line):
                table = found[1]
                keys[table] = set()
            elif found := re.match(r"(?:# )?(\w+) = ", line):
                keys[table].add(found[1])
    return keys


def selects(selector, labels):
    return selector and selector.items() <= labels.items()


def look_ports(rendered):
    """Every port of a Service and of the NetworkPolicy is one of the container, by its name; those are what the settings open."""
    ports = rendered.ports
    services = rendered.of_kind("Service")
    if len(services) != 2:
        yield f"{len(services)} Services"
    for service in services:
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in ports:
                yield f"{service['metadata']['name']}: no container port {port['targetPort']}"
    for policy in rendered.of_kind("NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            yield from (f"no container port {port['port']}" for port in rule["ports"] if port["port"] not in ports)
    for monitor in rendered.of_kind("ServiceMonitor"):
        yield from (f"monitor of {end['port']}" for end in monitor["spec"]["endpoints"] if end["port"] != "admin")
    settings = tomllib.loads(rendered.settings)
    for key, name in (("listen", "clients"), ("peer_listen", "members"), ("admin_listen", "admin")):
        if int(settings[key].rsplit(":", 1)[1]) != ports[name]:
            yield f"{key} is {settings[key]}, and the container's port {name} is {ports[name]}"


def look_probes(rendered):
    """The three probes ask the admin port, which speaks TLS."""
    wanted = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for name, path in wanted.items():
        found = rendered.container[name]["httpGet"]
        if found != {"path": path, "port": "admin", "scheme": "HTTPS"}:
            yield f"{name}: {found}"


def look_selectors(rendered):
    """Whatever chooses pods chooses those of the StatefulSet; the monitor chooses the headless Service alone."""
    labels = rendered.pod["metadata"]["labels"]
    spec = rendered.pod["spec"]
    selectors = [("StatefulSet", rendered.stateful_set["spec"]["selector"]["matchLabels"])]
    selectors += [("Service", one["spec"]["selector"]) for one in rendered.of_kind("Service")]
    selectors += [("PodDisruptionBudget", one["spec"]["selector"]["matchLabels"]) for one in rendered.of_kind("PodDisruptionBudget")]
    selectors += [("spread", one["labelSelector"]["matchLabels"]) for one in spec.get("topologySpreadConstraints", [])]
    for policy in rendered.of_kind("NetworkPolicy"):
        selectors.append(("NetworkPolicy", policy["spec"]["podSelector"]["matchLabels"]))
        members = [rule for rule in policy["spec"]["ingress"] if {"port": "members"} in rule["ports"]]
        if len(members) != 1 or len(members[0]["from"]) != 1:
            yield "the port for members is not for members alone"
        selectors.append(("members", members[0]["from"][0]["podSelector"]["matchLabels"]))
    apart = spec.get("affinity", {}).get("podAntiAffinity", {})
    terms = apart.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    terms += [one["podAffinityTerm"] for one in apart.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
    selectors += [("anti-affinity", term["labelSelector"]["matchLabels"]) for term in terms]
    yield from (f"{what} chooses by {selector}" for what, selector in selectors if not selects(selector, labels))
    for monitor in rendered.of_kind("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        chosen = [one for one in rendered.of_kind("Service") if selects(selector, one["metadata"]["labels"])]
        if [one["spec"].get("clusterIP") for one in chosen] != ["None"]:
            yield f"the monitor chooses {[one['metadata']['name'] for one in chosen]}"


def look_services(rendered):
    """Members find each other before they are ready, clients find what is ready; the pods' names are those of the headless Service."""
    services = {one["spec"].get("clusterIP"): one for one in rendered.of_kind("Service")}
    headless, clients = services["None"], services[None]
    if not headless["spec"].get("publishNotReadyAddresses"):
        yield "the headless Service names only pods that are ready"
    if clients["spec"].get("publishNotReadyAddresses") or clients["spec"]["type"] != "ClusterIP":
        yield "the Service for clients is not one address of what is ready"
    if rendered.stateful_set["spec"]["serviceName"] != headless["metadata"]["name"]:
        yield "the StatefulSet names another Service"
    if rendered.stateful_set["spec"]["podManagementPolicy"] != "Parallel":
        yield "pods wait for each other"
    budgets = [one["spec"]["maxUnavailable"] for one in rendered.of_kind("PodDisruptionBudget")]
    if budgets != ([] if rendered.stateful_set["spec"]["replicas"] == 1 else [1]):
        yield f"budgets: {budgets}"


def environment(rendered, ordinal):
    """The variables of a pod, with what Kubernetes puts in for `$(NAME)`."""
    values = {"POD_NAME": f"{rendered.stateful_set['metadata']['name']}-{ordinal}"}
    for variable in rendered.container["env"]:
        if "value" in variable:
            values[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], variable["value"])
    return values


def look_settings(rendered):
    """The settings are TOML with keys that are known, found by a variable; members are the pods, by the addresses that these have."""
    settings = tomllib.loads(rendered.settings)
    known = known_settings()
    for table, keys in (("", settings), ("cluster", settings["cluster"]), ("fallback", settings.get("fallback", {}))):
        tables = set(known) if not table else set()
        yield from (f"no setting {key} in [{table}]" for key in keys if key not in known[table] | tables)
        yield from (f"{key} is a fraction" for key, value in keys.items() if isinstance(value, float))
    if settings["join"] != "auto" or "node_id" in settings:
        yield "the node does not wait for its number"
    yield from (f"{key} is not set" for key in ("tls_cert", "tls_key", "tls_ca") if not settings.get(key))
    # `kubectl exec … -- holdfastd init` has the variables of the container, and no arguments of it.
    yield from (f"the container has {what}" for what in ("args", "command") if what in rendered.container)
    place, _, file = environment(rendered, 0)["HOLDFAST_CONFIG"].rpartition("/")
    if file != "holdfastd.toml" or place not in [mount["mountPath"] for mount in rendered.container["volumeMounts"]]:
        yield f"no settings in {place}/{file}"
    # Pods that are still to come may be among the members.
    wanted = max(rendered.stateful_set["spec"]["replicas"], len(settings["cluster"]["members"]))
    pods = [environment(rendered, ordinal) for ordinal in range(wanted)]
    own = [{"advertise": pod["HOLDFAST_ADVERTISE"], "peer_advertise": pod["HOLDFAST_PEER_ADVERTISE"]} for pod in pods]
    if settings["cluster"]["members"] != own:
        yield f"members are {settings['cluster']['members']}, and pods {own}"
    headless = f"{rendered.stateful_set['metadata']['name']}-peers.{rendered.stateful_set['metadata']['namespace']}.svc."
    yield from (f"{pod['HOLDFAST_ADVERTISE']} is no name of {headless}" for pod in pods if headless not in pod["HOLDFAST_ADVERTISE"])


def look_secrets(rendered):
    """No secret is rendered: neither an object of that kind, nor a key or password among settings and variables."""
    yield from (f"Secret {one['metadata']['name']}" for one in rendered.of_kind("Secret"))
    (found,) = rendered.of_kind("ConfigMap")
    if list(found["data"]) != ["holdfastd.toml"]:
        yield f"files {list(found['data'])}"
    # Files with secrets may be named.
    hidden = re.compile(r"(?i)-----BEGIN|(password|token|secret)(?!_file)\w* *=")
    yield from (line for line in rendered.settings.splitlines() if hidden.search(line))
    yield from (f"variable {name}" for name in environment(rendered, 0) if hidden.search(f"{name}="))


def look_security(rendered):
    """A pod has no right that it does not need, and reads its certificate by a volume as a whole."""
    pod, container = rendered.pod["spec"], rendered.container
    wanted = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    if not wanted.items() <= pod["securityContext"].items():
        yield f"pod: {pod['securityContext']}"
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    if container["securityContext"] != wanted:
        yield f"container: {container['securityContext']}"
    accounts = [pod, *rendered.of_kind("ServiceAccount")]
    yield from ("the token of the account is mounted" for one in accounts if one["automountServiceAccountToken"])
    if pod["enableServiceLinks"]:
        yield "variables of Services are in the pod, which holdfastd could take for settings"
    places = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    yield from (f"{place} is mounted as one file" for place, mount in places.items() if "subPath" in mount)
    files = [value for key, value in tomllib.loads(rendered.settings).items() if key.startswith("tls_")]
    yield from (f"{file} is in no volume" for file in files if file.rsplit("/", 1)[0] not in places)
    if not environment(rendered, 0)["HOLDFAST_DATA_DIR"].startswith("/var/lib/holdfast/"):
        yield "the data folder is not below the volume"


def look_monitoring(rendered):
    """The rules and the monitor are of the same job; every alert has a text of its own, as it stands in the file."""
    for monitor in rendered.of_kind("ServiceMonitor"):
        (end,) = monitor["spec"]["endpoints"]
        (job,) = [one["replacement"] for one in end["relabelings"] if one["targetLabel"] == "job"]
        rules = [rule for one in rendered.of_kind("PrometheusRule") for group in one["spec"]["groups"] for rule in group["rules"]]
        chosen = {regex for rule in rules for regex in re.findall(r'job=~"([^"]*)"', rule["expr"])}
        if not chosen:
            yield "no rule is of a job"
        yield from (f"the rules are of {regex}, and the job is {job}" for regex in chosen if not re.fullmatch(regex, job))
        yield from (f"{rule['alert']} names nothing" for rule in rules if "{{ $labels." not in rule["annotations"]["summary"])
        if end["scheme"] != "https":
            yield "it is scraped without TLS"


def look_certificate(rendered):
    """The certificate makes its owner a node of this cluster, has every name that is dialled, and lies where it is looked for."""
    (found,) = rendered.of_kind("Certificate")
    spec, settings = found["spec"], tomllib.loads(rendered.settings)
    if spec["uris"] != [f"holdfast:node:{settings['cluster']['cluster_name']}"]:
        yield f"URIs {spec['uris']}"
    if not {"server auth", "client auth"} <= set(spec["usages"]):
        yield f"usages {spec['usages']}"
    for member in settings["cluster"]["members"]:
        host = member["advertise"].rsplit(":", 1)[0]
        if f"*.{host.split('.', 1)[1]}" not in spec["dnsNames"]:
            yield f"no name for {host}"
    volumes = [volume["secret"]["secretName"] for volume in rendered.pod["spec"]["volumes"] if "secret" in volume]
    if volumes != [spec["secretName"]]:
        yield f"it lies in {spec['secretName']}, and is looked for in {volumes}"


def look_kinds(rendered):
    """Prints the kind of each object."""
    print(*sorted(one["kind"] for one in rendered.all))
    return ()


def look_environment(rendered, ordinal):
    """Prints the variables of a pod."""
    print(*(f"{name}={value}" for name, value in environment(rendered, ordinal).items()), sep="\n")
    return ()


def look_toml(rendered):
    """Prints the settings."""
    print(rendered.settings)
    return ()


def look_secret(rendered):
    """Prints the name of the Secret that pods mount."""
    print(*(volume["secret"]["secretName"] for volume in rendered.pod["spec"]["volumes"] if "secret" in volume))
    return ()


def look_names(rendered):
    """Prints the names that a node's certificate needs, separated by commas."""
    domain = environment(rendered, 0)["HOLDFAST_ADVERTISE"].rsplit(":", 1)[0].split(".", 1)[1]
    print(f"*.{domain}")
    return ()


def look_checksum(rendered):
    """Prints what restarts the pods when it changes."""
    print(rendered.pod["metadata"]["annotations"]["checksum/settings"])
    return ()


def look_schema(schema):
    """The schema of values has the settings of deploy/config/node.toml, and no others."""
    with open(schema, encoding="utf-8") as file:
        tables = {"": json.load(file)["properties"]["settings"]}
    tables["cluster"], tables["fallback"] = (tables[""]["properties"].pop(name) for name in ("cluster", "fallback"))
    for table, keys in known_settings().items():
        differs = keys ^ set(tables[table]["properties"])
        yield from (f"only one of both has {key} in [{table}]" for key in sorted(differs))
        if tables[table]["additionalProperties"]:
            yield f"[{table}] may have other keys"


def main():
    what, path, *arguments = sys.argv[1:]
    look = globals()[f"look_{what}"]
    subject = path if what == "schema" else Rendered(path)
    wrong = list(look(subject, *arguments))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
