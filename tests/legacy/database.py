"""The ordinary driver, as the old clients use it: QUORUM, SERIAL, nothing repeated behind their backs."""
import time

from cassandra import ConsistencyLevel, DriverException, OperationTimedOut, RequestExecutionException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import FallthroughRetryPolicy, RoundRobinPolicy

# The statement may have been applied, or not, or may be yet. No seed speaks of it.
NO_ANSWER = (RequestExecutionException, OperationTimedOut, NoHostAvailable, DriverException)


def now():
    """Seconds that no clock adjustment moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Database:
    """One session on one keyspace; statements are prepared once."""

    def __init__(self, points, keyspace):
        hosts = [point.rsplit(":", 1) for point in points.split(",")]
        profile = ExecutionProfile(
            load_balancing_policy=RoundRobinPolicy(),
            retry_policy=FallthroughRetryPolicy(),
            consistency_level=ConsistencyLevel.QUORUM,
            serial_consistency_level=ConsistencyLevel.SERIAL,
            request_timeout=10,
        )
        self.cluster = Cluster(
            [host for host, _ in hosts], port=int(hosts[0][1]), execution_profiles={EXEC_PROFILE_DEFAULT: profile}
        )
        self.session = self.cluster.connect(keyspace)
        self.prepared = {}

    def run(self, text, *values):
        """Executes once; raises one of NO_ANSWER if nobody said what came of it."""
        return self.session.execute(self._prepare(text), values)

    def run_serial(self, text, *values):
        """A read at SERIAL: after it, what was begun before is done or never will be."""
        statement = self._prepare(text).bind(values)
        statement.consistency_level = ConsistencyLevel.SERIAL
        return self.session.execute(statement)

    def _prepare(self, text):
        if text not in self.prepared:
            self.prepared[text] = self.session.prepare(text)
        return self.prepared[text]


def until_answered(act, stop):
    """Does it again until there is an answer: for what may be done twice. None once `stop` is set."""
    while not stop.is_set():
        try:
            return act()
        except NO_ANSWER:
            stop.wait(0.1)
    return None
