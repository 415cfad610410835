"""The bakery of the article on Cassandra locks in PHP, step by step: of its code only the ten steps are at hand.

They have no way not to wait. Here that is: leave where step 1, 6 or 7 would.
"""
from bakery_cells import Cells


class BakeryPhp:
    def __init__(self, database, ttl_s, pause_s):
        self.database, self.ttl_s, self.pause_s = database, ttl_s, pause_s

    def get(self, lock_id, stop):
        """Steps 1 to 9; None once `stop` is set."""
        return self._enter(lock_id, stop, True)

    def try_get(self, lock_id, stop):
        return self._enter(lock_id, stop, False)

    def _enter(self, lock_id, stop, waits):
        process = Process(self, lock_id, "numbers_php", "choosing_php")
        while process.others_choosing(stop):  # 1
            if not waits or stop.wait(self.pause_s()):
                return None
        process.withdraw_number(stop)
        if process.waits_its_turn(stop, waits):
            return process
        process.release()
        return None


class Process(Cells):
    """ "PID is optional and any other unique ID can be used"."""

    def others_choosing(self, stop):
        """ "True value regardless of column names"; its own is no other's."""
        return any(flag for id, flag in self.row(self.choosing, stop).items() if id != self.id)

    def withdraw_number(self, stop):
        self.put(self.choosing, True, stop)  # 2
        last = max(self.row(self.numbers, stop).values(), default=0)  # 3
        self.put_number(last + 1, stop)  # 3 and 4
        self.put(self.choosing, False, stop)  # 5

    def waits_its_turn(self, stop, waits):
        """Steps 6 to 9; false if it would have to wait and does not, or once `stop` is set."""
        while self.others_choosing(stop) or self.somebody_is_before(stop):
            if not waits or stop.wait(self.bakery.pause_s()):
                return False
        return not stop.is_set()

    def somebody_is_before(self, stop):
        """7; and 8, "both chosen number and PID"."""
        numbers = self.row(self.numbers, stop)
        return any((number, id) < (self.number, self.id) for id, number in numbers.items())

    def release(self):
        """10."""
        self.end()
        self.remove(self.numbers)
        self.remove(self.choosing)
