"""Questions of tests/monitoring/run: about files of the repository, and to a Prometheus.

    ask.py metrics ALERTS BOARD DOCUMENT    every metric that rules and board name is in the document
    ask.py runbooks ALERTS RUNBOOKS         every alert has its runbook, and every runbook its alerts
    ask.py tests ALERTS TESTS               every alert has a unit test
    ask.py commands RUNBOOKS                the commands of the runbooks, one a line, with values for what stands in capitals
    ask.py board BOARD                      the board is one that Grafana can take: ids, places, titles, units, descriptions
    ask.py query URL QUERY                  the query finds something
    ask.py targets URL N                    there are N targets, all of them up, and none had an error
    ask.py scraped URL ALERTS JOB           every metric that the rules name is there, and every label that they choose by
    ask.py panels URL BOARD JOB             every query of the board finds a number
    ask.py firing URL ALERT [LABEL=VALUE]   the alert fires
    ask.py evaluated URL                    every rule could be evaluated, and the texts of active alerts be made

Exits with 0 if it is so; with 1 if it is not, and prints what is not; with 2 if that cannot be told.
"""

import json
import math
import re
import sys
import urllib.parse
import urllib.request

# Rows of docs/metrics.md end with the kind; histograms have these three.
OF_HISTOGRAM = ("_bucket", "_sum", "_count")

# Cassandra is not there: these queries find nothing.
WITHOUT_CASSANDRA = "holdfast_scope_"

# Runbooks that have to be there, whatever the alerts say: an operator looks for them by name.
ASKED_FOR = (
    "lost-quorum", "full-disk", "damaged-store", "clock-trouble", "hot-lock", "dead-member", "certificate", "restore",
)

# What stands in capitals in a command of a runbook.
PLACEHOLDERS = {
    "ADDRESS": "127.0.0.1", "FILE": "f", "HOST": "127.0.0.1", "ID": "1", "IDENTITY": "cn:ops", "N": "1", "NAME": "runbook",
    "PREFIX": "run", "SETTINGS": "s.toml",
}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def documented(document):
    """Every name of a series that a scrape may have."""
    names = set()
    for name, kind in re.findall(r"^\| `(\w+)`(?: \*)? \| (\w+) \|", read(document), re.MULTILINE):
        names |= {name + end for end in OF_HISTOGRAM} if kind == "histogram" else {name}
        names |= {name + "_info"} if kind == "info" else set()
    return names


def rules(path):
    """The rules of the file as (alert, text)."""
    parts = re.split(r"^ +- alert: (\w+)$", read(path), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2]))


def named(text):
    return set(re.findall(r"\b(?:holdfast|process)_[a-z0-9_]+", text))


def queries(board):
    for panel in json.loads(read(board))["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def metrics(alerts, board, document):
    known = documented(document)
    if len(known) < 60:
        return [f"{document}: only {len(known)} metrics"]
    of_rules = {name: alert for alert, text in rules(alerts) for name in named(text.split("annotations:")[0])}
    of_board = {name: title for title, asked in queries(board) for name in named(asked)}
    unknown = {**of_rules, **of_board}
    return [f"{name} of {where} is not in {document}" for name, where in unknown.items() if name not in known]


def anchor(heading):
    return "".join(c for c in heading.strip().lower().replace(" ", "-") if c.isalnum() or c in "-_")


def runbooks(alerts, document):
    wrong, reached = [], {}
    for alert, text in rules(alerts):
        found = re.search(r"runbook: docs/runbooks\.md#(\S+)$", text, re.MULTILINE)
        if not found:
            wrong.append(f"{alert} has no runbook")
            continue
        reached.setdefault(found[1], set()).add(alert)
        wrong += [f"{alert} has no {what}" for what in ("severity", "summary", "description") if f"{what}: " not in text]
    parts = re.split(r"^## (.+)$", read(document), flags=re.MULTILINE)
    written = {anchor(heading): set(re.findall(r"`(Holdfast\w+)`", text)) for heading, text in zip(parts[1::2], parts[2::2])}
    for name in written.keys() | reached.keys() | set(ASKED_FOR):
        # An alert may be named in another's runbook too.
        missing = reached.get(name, set()) - written.get(name, set())
        wrong += [f"#{name} does not name {alert}" for alert in missing]
        if name not in written:
            wrong.append(f"{document} has no #{name}")
        elif name not in reached:
            wrong.append(f"no alert leads to #{name}")
    return wrong


def tests(alerts, path):
    tested = set(re.findall(r'alertname="(\w+)"', read(path)))
    return [f"{alert} has no test" for alert, _ in rules(alerts) if alert not in tested]


def commands(document):
    text = read(document)
    fenced = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in sorted({line for line in fenced + spans if re.match(r"holdfastd? [a-z]", line)}):
        print(re.sub(r"\b[A-Z]+\b", lambda word: PLACEHOLDERS.get(word[0], word[0]), line))
    return []


def board_of(path):
    board = json.loads(read(path))
    panels = board["panels"]
    wrong = []
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        wrong.append("two panels have one id")
    taken = {}
    for panel in panels:
        title, at = panel["title"], panel["gridPos"]
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            if cell in taken or cell[0] >= 24:
                wrong.append(f"'{title}' lies over '{taken.get(cell, 'the edge')}'")
                break
            taken[cell] = title
        if panel["type"] == "row":
            continue
        defaults = panel["fieldConfig"]["defaults"]
        wrong += [f"'{title}' has no {what}" for what, there in (
            ("description", panel.get("description")), ("unit", defaults.get("unit")), ("query", panel["targets"])) if not there]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        if any(source["uid"] != "${datasource}" for source in sources):
            wrong.append(f"'{title}' has a data source of its own")
    return wrong


def get(url, path, **parameters):
    address = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    # No proxy is between this process and its own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=5) as answer:
        return json.load(answer)["data"]


def query(url, asked):
    return [] if get(url, "query", query=asked)["result"] else [f"nothing: {asked}"]


def targets(url, count):
    found = get(url, "targets")["activeTargets"]
    wrong = [f"{one['scrapeUrl']} is {one['health']}: {one['lastError']}" for one in found
             if one["health"] != "up" or one["lastError"]]
    return wrong or ([] if len(found) == int(count) else [f"{len(found)} targets"])


def scraped(url, alerts, job):
    found = set(get(url, "label/__name__/values", **{"match[]": f'{{job="{job}"}}'}))
    wanted = {name for _, text in rules(alerts) for name in named(text.split("annotations:")[0])}
    wrong = [f"no series {name}" for name in sorted(wanted - found) if WITHOUT_CASSANDRA not in name]
    # A reason that is written wrong is one that never comes.
    chosen = {selector for _, text in rules(alerts) for selector in re.findall(r'\bholdfast_\w+\{[^}]+\}', text.split("annotations:")[0])}
    return wrong + [problem for selector in sorted(chosen) for problem in query(url, selector)]


def panels(url, board, job):
    wrong = []
    for title, expression in queries(board):
        asked = expression.replace("$job", job).replace("$prefix", ".+").replace("$__rate_interval", "30s").replace("$__range", "2m")
        if WITHOUT_CASSANDRA in asked:
            # It still has to be one that Prometheus can read.
            get(url, "query", query=asked)
        elif not any(math.isfinite(float(one["value"][1])) for one in get(url, "query", query=asked)["result"]):
            wrong.append(f"'{title}' has no number: {asked}")
    return wrong


def firing(url, alert, *labels):
    wanted = dict(label.split("=", 1) for label in labels)
    active = [one for one in get(url, "alerts")["alerts"] if one["labels"]["alertname"] == alert]
    fits = [one for one in active if one["state"] == "firing" and wanted.items() <= one["labels"].items()]
    return [] if fits else [f"{alert} does not fire; active: {active}"]


def evaluated(url):
    all_rules = [rule for group in get(url, "rules")["groups"] for rule in group["rules"]]
    wrong = [f"{rule['name']}: {rule.get('lastError')}" for rule in all_rules if rule["health"] != "ok"]
    active = get(url, "alerts")["alerts"]
    wrong += [f"{one['labels']['alertname']}: {text}" for one in active for text in one["annotations"].values()
              if "error" in text or "<no value>" in text or "%!" in text]
    return wrong if all_rules and active else ["no rule, or no alert that is active"]


ASKED = {"metrics": metrics, "runbooks": runbooks, "tests": tests, "commands": commands, "board": board_of,
         "query": query, "targets": targets, "scraped": scraped, "panels": panels, "firing": firing, "evaluated": evaluated}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ASKED:
        sys.exit(__doc__)
    try:
        wrong = ASKED[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        print(f"{sys.argv[1]}: {error}")
        sys.exit(2)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)
