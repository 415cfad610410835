"""What the old clients of both bakeries have in common: two column families, and the cells of one attempt in them.

The articles' cells stand for ever. Here they have a TTL, and a client that waits or holds writes its number again every half of that:
else none could be killed.
"""
import threading
import uuid

from database import NO_ANSWER, now, until_answered


class Cells:
    """Those of one id, which is never used again: what is late harms nobody."""

    def __init__(self, bakery, lock_id, numbers, choosing):
        self.bakery, self.database, self.lock_id = bakery, bakery.database, lock_id
        self.numbers, self.choosing = numbers, choosing
        self.id = uuid.uuid4().hex
        self.number = None
        self.sent = None
        self.over = threading.Event()
        self.renewing = threading.Thread(target=self._renew, daemon=True)

    def _put(self, table, value):
        # Column families made through Thrift: key, column1, value.
        sent = now()
        text = f"INSERT INTO {table} (key, column1, value) VALUES (?, ?, ?) USING TTL ?"
        self.database.run(text, self.lock_id, self.id, value, self.bakery.ttl_s)
        return sent

    def put(self, table, value, stop):
        return until_answered(lambda: self._put(table, value), stop)

    def put_number(self, number, stop):
        """From here on it is kept."""
        self.number = number
        self.sent = self.put(self.numbers, number, stop)
        self.renewing.start()

    def remove(self, table):
        text = f"DELETE FROM {table} WHERE key = ? AND column1 = ?"
        until_answered(lambda: self.database.run(text, self.lock_id, self.id), threading.Event())

    def row(self, table, stop):
        """By column name; nothing once `stop` is set."""
        text = f"SELECT column1, value FROM {table} WHERE key = ?"
        looked = until_answered(lambda: list(self.database.run(text, self.lock_id)), stop)
        return {row.column1: row.value for row in looked or []}

    def _renew(self):
        while not self.over.wait(self.bakery.ttl_s / 2):
            try:
                self.sent = self._put(self.numbers, self.number)
            except NO_ANSWER:
                pass

    def believes(self):
        return not self.over.is_set() and now() < self.sent + self.bakery.ttl_s

    def end(self):
        """The number is not written any more."""
        self.over.set()
        self.renewing.join()
