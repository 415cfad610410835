"""A client that is not ours: stubs that grpcio-tools made of proto/holdfast/v1/lock.proto, and unary calls.

    python client.py STUBS HOST:PORT

STUBS is the folder with the generated modules, HOST:PORT a server whose locks nobody else uses. Each check below is
one sentence about what such a client meets; the first that does not hold ends the program with 1.
"""

import sys
import threading
import time

import grpc
from grpc_status import rpc_status

sys.path.insert(0, sys.argv[1])

from holdfast.v1 import lock_pb2 as pb  # noqa: E402
from holdfast.v1 import lock_pb2_grpc  # noqa: E402

TTL_MS = 10_000
# Longer than any call here takes: a server that forgets to answer fails the check instead of hanging it.
PATIENCE_S = 20


class Session:
    """A session opened by a call, with request ids in rising order."""

    def __init__(self, stub, label):
        request = pb.OpenSessionRequest(ttl_ms=TTL_MS, label=label)
        opened = stub.OpenSession(request, timeout=PATIENCE_S)
        assert opened.ttl_ms == TTL_MS and len(opened.session.secret) == 16
        self.stub, self.key, self.last = stub, opened.session, 0

    def next_id(self):
        self.last += 1
        return self.last

    def acquire(self, *names, mode=pb.MODE_EXCLUSIVE, wait=True, wait_ms=None, request_id=None, any_of=None, claim=None):
        items = [pb.Item(name=name.encode(), mode=mode) for name in names]
        acquire = pb.Acquire(request_id=request_id or self.next_id(), items=items, wait=wait, any=any_of, claim_owner=claim)
        request = pb.AcquireRequest(session=self.key, acquire=acquire, wait_ms=wait_ms)
        return self.stub.Acquire(request, timeout=PATIENCE_S).granted

    def acquire_later(self, *names, **how):
        """An Acquire on a thread of its own; call what it returns to get the answer."""
        return in_background(lambda: self.acquire(*names, **how))

    def release(self, token, *names):
        release = pb.Release(token=token, names=[name.encode() for name in names])
        request = pb.ReleaseRequest(session=self.key, release=release)
        return self.stub.Release(request, timeout=PATIENCE_S).released

    def cancel(self, request_id):
        request = pb.CancelRequest(session=self.key, cancel=pb.Cancel(request_id=request_id))
        return self.stub.Cancel(request, timeout=PATIENCE_S).cancelled.was

    def set_value(self, token, name, **change):
        change = pb.SetValue(request_id=self.next_id(), token=token, name=name.encode(), **change)
        self.stub.SetValue(pb.SetValueRequest(session=self.key, set_value=change), timeout=PATIENCE_S)

    def keep_alive(self):
        return self.stub.KeepAlive(pb.KeepAliveRequest(session=self.key), timeout=PATIENCE_S)

    def close(self):
        self.stub.CloseSession(pb.CloseSessionRequest(session=self.key), timeout=PATIENCE_S)


def in_background(call):
    answers = []

    def run():
        try:
            answers.append(call())
        except grpc.RpcError as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def answer():
        thread.join(PATIENCE_S)
        assert answers, "no answer came"
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    return answer


def inspect(stub, name):
    return stub.Inspect(pb.InspectRequest(name=name), timeout=PATIENCE_S).lock


def until_waiting(stub, name, count):
    """Until so many stand in the queue of a lock: a call on another thread got there."""
    give_up = time.monotonic() + PATIENCE_S
    while inspect(stub, name).waiting != count:
        assert time.monotonic() < give_up, f"{name} is not waited for by {count}"
        time.sleep(0.005)


def is_current(stub, name, token):
    return stub.CheckToken(pb.CheckTokenRequest(name=name, token=token), timeout=PATIENCE_S).current


def refused(call, code, reason, words):
    """The call ends with that code, and with a Refusal of that reason as its typed detail."""
    try:
        answer = call()
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()}: {error.details()}"
        refusal = pb.Refusal()
        (detail,) = rpc_status.from_call(error).details
        assert detail.Unpack(refusal), f"the detail is a {detail.type_url}"
        shown = f"{pb.RefusalReason.Name(refusal.reason)}: {refusal.message}"
        assert refusal.reason == reason and refusal.message == error.details(), shown
        assert words in refusal.message, shown
        return refusal
    raise AssertionError(f"not refused: {answer}")


# ---- the checks ---------------------------------------------------------------------------------


def a_second_session_waits_at_the_server_and_is_granted_on_release(stub):
    first, second = Session(stub, "first"), Session(stub, "second")
    held = first.acquire("py/jobs")
    assert list(held.names) == [b"py/jobs"]
    waits = second.acquire_later("py/jobs")
    until_waiting(stub, "py/jobs", 1)
    assert is_current(stub, "py/jobs", held.token)

    released = first.release(held.token)

    granted = waits()
    assert granted.token > held.token and list(released.names) == [b"py/jobs"] and not released.partly
    assert is_current(stub, "py/jobs", granted.token) and not is_current(stub, "py/jobs", held.token)
    second.release(granted.token)
    assert not is_current(stub, "py/jobs", granted.token)


def a_wait_is_given_up_by_wait_ms_or_by_a_cancel(stub):
    holder, waiter = Session(stub, "holder"), Session(stub, "waiter")
    held = holder.acquire("py/wait")
    late = lambda: waiter.acquire("py/wait", wait_ms=50)  # noqa: E731
    refused(late, grpc.StatusCode.DEADLINE_EXCEEDED, pb.REFUSAL_REASON_CANCELLED, "not granted within")
    assert inspect(stub, "py/wait").waiting == 0

    waits = waiter.acquire_later("py/wait")
    until_waiting(stub, "py/wait", 1)
    assert waiter.cancel(waiter.last) == pb.Cancelled.WAS_WAITING
    refused(waits, grpc.StatusCode.CANCELLED, pb.REFUSAL_REASON_CANCELLED, "was cancelled")
    assert holder.cancel(1) == pb.Cancelled.WAS_HELD
    assert not is_current(stub, "py/wait", held.token)


def a_retry_under_the_same_id_finds_the_place_of_a_call_that_was_cut(stub):
    holder, early, late = Session(stub, "holder"), Session(stub, "early"), Session(stub, "late")
    held = holder.acquire("py/cut")
    items = [pb.Item(name=b"py/cut")]
    request = pb.AcquireRequest(session=early.key, acquire=pb.Acquire(request_id=1, items=items, wait=True))
    cut = stub.Acquire.future(request, timeout=PATIENCE_S)
    until_waiting(stub, "py/cut", 1)
    cut.cancel()
    behind = late.acquire_later("py/cut")
    until_waiting(stub, "py/cut", 2)

    again = early.acquire_later("py/cut", request_id=1)
    holder.release(held.token)

    early.release(again().token)
    late.release(behind().token)


def a_try_is_refused_with_who_holds_the_lock(stub):
    holder, other = Session(stub, "who-holds"), Session(stub, "other")
    held = holder.acquire("py/try")
    attempt = lambda: other.acquire("py/try", wait=False)  # noqa: E731
    refusal = refused(attempt, grpc.StatusCode.FAILED_PRECONDITION, pb.REFUSAL_REASON_LOCK_HELD, "py/try is held")
    assert (refusal.holders[0].label, refusal.holders[0].token) == ("who-holds", held.token)


def readers_share_sets_are_whole_and_any_takes_what_is_free(stub):
    first, second = Session(stub, "first"), Session(stub, "second")
    first.acquire("py/plan", mode=pb.MODE_SHARED)
    second.acquire("py/plan", mode=pb.MODE_SHARED)
    assert inspect(stub, "py/plan").held_by == 2

    both = first.acquire("py/a", "py/b")
    assert list(both.names) == [b"py/a", b"py/b"]
    part = first.release(both.token, "py/a")
    assert part.partly and not is_current(stub, "py/a", both.token) and is_current(stub, "py/b", both.token)
    free = second.acquire("py/a", "py/b", any_of=pb.AnyOf(min=0))
    assert list(free.names) == [b"py/a"]
    nothing = lambda: second.acquire("py/a", "py/b", any_of=pb.AnyOf(min=0))  # noqa: E731
    refused(nothing, grpc.StatusCode.FAILED_PRECONDITION, pb.REFUSAL_REASON_NOTHING_FREE, "none of the locks")

    two = second.acquire_later("py/a", "py/b", "py/c", any_of=pb.AnyOf(min=2))
    until_waiting(stub, "py/c", 1)
    first.release(both.token)
    assert list(two().names) == [b"py/b", b"py/c"]


def what_another_store_held_is_brought_in_and_claimed_by_its_owner(stub):
    name = "py/moved"

    def group(owner, **has):
        return pb.ImportGroup(owner=owner, remaining_ms=60_000, rows=[pb.ImportRow(name=name.encode(), **has)])

    groups = [
        group("old/1", hold=pb.ImportHold(value=b"half")),
        group("old/2", place=pb.ImportPlace()),
    ]
    first = stub.Import(pb.ImportRequest(groups=groups), timeout=PATIENCE_S)
    again = stub.Import(pb.ImportRequest(groups=groups), timeout=PATIENCE_S)
    fates = [group.rows[0] for group in first.groups]
    assert fates[0].held > 0 and fates[1].WhichOneof("fate") == "queued", first
    assert all(group.rows[0].WhichOneof("fate") == "known" for group in again.groups), again
    assert inspect(stub, name).holders[0].imported

    owner, next_in_line = Session(stub, "owner"), Session(stub, "next in line")
    waiting = next_in_line.acquire_later(name, claim="old/2")
    granted = owner.acquire(name, claim="old/1")
    assert granted.token > fates[0].held and granted.values[0].value.value == b"half", granted
    owner.release(granted.token)
    assert waiting().token > granted.token
    refused(
        lambda: owner.acquire(name, claim="old/1"),
        grpc.StatusCode.FAILED_PRECONDITION,
        pb.REFUSAL_REASON_NOT_IMPORTED,
        "nothing of py/moved was imported",
    )
    owner.close()
    next_in_line.close()


def a_value_is_set_and_read_and_goes_to_the_next_holder(stub):
    first, second = Session(stub, "first"), Session(stub, "second")
    token = first.acquire("py/value").token
    first.set_value(token, "py/value", value=b"page 7")
    shown = inspect(stub, "py/value").value
    assert (shown.value, shown.token, shown.suspect) == (b"page 7", token, False)
    first.release(token)

    granted = second.acquire("py/value")

    assert granted.values[0].name == b"py/value" and granted.values[0].value.value == b"page 7"
    second.set_value(granted.token, "py/value", clear=pb.Clear())
    assert not inspect(stub, "py/value").has_value


def locks_are_listed_in_pages_in_the_order_of_their_names(stub):
    session = Session(stub, "lister")
    names = [f"py/list/{number}" for number in range(5)]
    for name in reversed(names):
        session.acquire(name)
    pages, token = [], ""
    while True:
        request = pb.ListRequest(prefix="py/list/", page_size=2, page_token=token)
        page = stub.List(request, timeout=PATIENCE_S)
        pages.append([lock.name for lock in page.locks])
        token = page.next_page_token
        if not token:
            break
    assert pages == [names[0:2], names[2:4], names[4:5]], pages


def a_session_is_kept_alive_and_closed(stub):
    session, other = Session(stub, "kept"), Session(stub, "other")
    held = session.acquire("py/closed")
    assert session.keep_alive().ttl_ms == TTL_MS

    session.close()

    assert not is_current(stub, "py/closed", held.token)
    other.acquire("py/closed", wait=False)
    refused(session.keep_alive, grpc.StatusCode.NOT_FOUND, pb.REFUSAL_REASON_SESSION_UNKNOWN, "is not open")


def what_is_wrong_is_refused_with_its_own_words(stub):
    session, other = Session(stub, "session"), Session(stub, "other")
    foreign = other.acquire("py/foreign").token
    invalid = (grpc.StatusCode.INVALID_ARGUMENT, pb.REFUSAL_REASON_INVALID)
    not_holder = (grpc.StatusCode.FAILED_PRECONDITION, pb.REFUSAL_REASON_NOT_HOLDER)
    limit = (grpc.StatusCode.RESOURCE_EXHAUSTED, pb.REFUSAL_REASON_LIMIT)
    shared = session.acquire("py/shared", mode=pb.MODE_SHARED).token
    not_exclusive = (grpc.StatusCode.FAILED_PRECONDITION, pb.REFUSAL_REASON_NOT_EXCLUSIVE)
    nonsense = pb.ListRequest(page_token="nonsense")

    refused(lambda: session.acquire("a\nb"), *invalid, "U+000A")
    refused(lambda: session.acquire(), *invalid, "at least one lock")
    refused(lambda: session.acquire("twice", "twice"), *invalid, "twice is named twice")
    refused(lambda: session.acquire(*[str(number) for number in range(65)]), *limit, "65 names")
    refused(lambda: session.acquire("a", any_of=pb.AnyOf(min=2)), *invalid, "at least 2 of 1")
    refused(lambda: session.acquire("a", mode=9), *invalid, "mode 9 of a")
    refused(lambda: session.release(foreign), *not_holder, "does not hold anything")
    refused(lambda: session.set_value(foreign, "py/foreign", value=b"x"), *not_holder, "does not hold")
    refused(lambda: session.set_value(shared, "py/shared", value=b"x"), *not_exclusive, "only an exclusive holder")
    refused(lambda: session.set_value(shared, "py/shared", value=b"x" * 4097), *limit, "4097 bytes")
    refused(lambda: session.set_value(shared, "py/shared"), *invalid, "set, clear or confirm")
    refused(lambda: inspect(stub, ""), *invalid, "cannot be empty")
    refused(lambda: stub.List(nonsense, timeout=PATIENCE_S), *invalid, "page_token is not one")
    refused(lambda: stub.Acquire(pb.AcquireRequest(), timeout=PATIENCE_S), *invalid, "has no `acquire`")
    assert is_current(stub, "py/foreign", foreign)


def a_wrong_secret_opens_nothing(stub):
    session = Session(stub, "robbed")
    held = session.acquire("py/secret")
    thief = Session(stub, "thief")
    thief.key = pb.SessionKey(session_id=session.key.session_id, secret=bytes(16))
    unknown = (grpc.StatusCode.NOT_FOUND, pb.REFUSAL_REASON_SESSION_UNKNOWN, "this is not its secret")
    for attempt in [
        lambda: thief.release(held.token),
        lambda: thief.cancel(1),
        lambda: thief.acquire("py/secret"),
        lambda: thief.set_value(held.token, "py/secret", value=b"x"),
        thief.keep_alive,
        thief.close,
    ]:
        refused(attempt, *unknown)
    assert is_current(stub, "py/secret", held.token) and not inspect(stub, "py/secret").has_value


CHECKS = [
    a_second_session_waits_at_the_server_and_is_granted_on_release,
    a_wait_is_given_up_by_wait_ms_or_by_a_cancel,
    a_retry_under_the_same_id_finds_the_place_of_a_call_that_was_cut,
    a_try_is_refused_with_who_holds_the_lock,
    readers_share_sets_are_whole_and_any_takes_what_is_free,
    what_another_store_held_is_brought_in_and_claimed_by_its_owner,
    a_value_is_set_and_read_and_goes_to_the_next_holder,
    locks_are_listed_in_pages_in_the_order_of_their_names,
    a_session_is_kept_alive_and_closed,
    what_is_wrong_is_refused_with_its_own_words,
    a_wrong_secret_opens_nothing,
]


def main():
    # A proxy of the environment is not for a server on loopback.
    with grpc.insecure_channel(sys.argv[2], options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = lock_pb2_grpc.LockServiceStub(channel)
        for check in CHECKS:
            check(stub)
            print("ok", check.__name__, flush=True)
    print("all checks hold")


main()
