"""The bakery of the Cassandra wiki ("Locking a row"), line by line.

In two places the page's text would not do, and this client says more than it does:
- line 7 reads the numbers before line 9 has waited for clients that are choosing, whose numbers are then not looked at. Here they are
  read again after that wait.
- it has no way not to wait. Here that is: draw, and leave if line 9 or line 13 would wait.
Line 13 is as it stands: it compares numbers without the id, so two that draw the same number at the same time are both in.
"""
from bakery_cells import Cells


class BakeryWiki:
    def __init__(self, database, ttl_s, pause_s):
        self.database, self.ttl_s, self.pause_s = database, ttl_s, pause_s

    def get(self, lock_id, stop):
        """Lines 1 to 18; None once `stop` is set."""
        return self._enter(lock_id, stop, True)

    def try_get(self, lock_id, stop):
        return self._enter(lock_id, stop, False)

    def _enter(self, lock_id, stop, waits):
        client = Client(self, lock_id, "numbers", "choosing")
        client.draw(stop)
        if client.is_served(stop, waits):
            return client
        client.release()
        return None


class Client(Cells):
    """One client_id."""

    def draw(self, stop):
        self.put(self.choosing, 1, stop)  # 1
        number_hash = self.row(self.numbers, stop)  # 2
        client_number = max(number_hash.values(), default=0) + 1  # 3
        self.put_number(client_number, stop)  # 4
        self.remove(self.choosing)  # 5

    def is_served(self, stop, waits):
        """Lines 6 to 17; false if it would have to wait and does not, or once `stop` is set."""
        choosing_hash = self.row(self.choosing, stop)  # 6
        number_hash = self.row(self.numbers, stop)  # 7
        for id in sorted(choosing_hash.keys() | number_hash.keys()):  # 8
            while choosing_hash.get(id) == 1:  # 9
                if not waits or stop.wait(self.bakery.pause_s()):  # 10
                    return False
                choosing_hash = self.row(self.choosing, stop)  # 11
                number_hash = self.row(self.numbers, stop)  # and not in the text
            while id in number_hash and number_hash[id] < self.number:  # 13
                if not waits or stop.wait(self.bakery.pause_s()):  # 14
                    return False
                number_hash = self.row(self.numbers, stop)  # 15
        return not stop.is_set()

    def release(self):
        self.end()
        self.remove(self.numbers)  # 19
