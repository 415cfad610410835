import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;

/** The clients of a measurement of Curator's or Hazelcast's lock: see ../../README.md. */
public final class Measure {
    private static final int CONNECTIONS = 8;
    private static final long WARM_UP = 2_000_000_000L;
    /** How long clients may take to come to an end after the window, nanoseconds. */
    private static final long PATIENCE = 5_000_000_000L;

    private final Locks locks;
    private final boolean shared;
    private final String name = "b" + ThreadLocalRandom.current().nextLong(1L << 60) + "k";
    private final long from = System.nanoTime() + WARM_UP, until;
    /** When the lock was last released, in W3. */
    private final AtomicLong released = new AtomicLong();

    private Measure(Locks locks, boolean shared, int secs) {
        this.locks = locks;
        this.shared = shared;
        until = from + secs * 1_000_000_000L;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i + 1 < args.length; i += 2) given.put(args[i].substring(1), args[i + 1]);
        int clients = number(given, "n"), secs = number(given, "secs");
        int connections = Math.min(clients, CONNECTIONS);
        Locks locks = Locks.of(given.get("peer"), given.get("endpoints").split(","), connections, number(given, "ttl"));
        Measure measure = new Measure(locks, given.get("workload").equals("W3"), secs);
        Map<String, Object> row = measure.run(clients, secs, given.getOrDefault("pids", ""));
        StringBuilder line = new StringBuilder("{");
        row.forEach((key, value) -> line.append(line.length() > 1 ? "," : "").append('"').append(key).append("\":").append(value));
        System.out.println(line.append("}"));
        // Threads of the peers' libraries are left.
        System.exit(0);
    }

    private static int number(Map<String, String> given, String key) {
        return Integer.parseInt(given.get(key));
    }

    /** A client's share of the figures. */
    private static final class Tally {
        private final Samples acquires = new Samples(), handOvers = new Samples();
        private int grants, errors;
    }

    private static final class Samples {
        private long[] values = new long[1024];
        private int count;

        void add(long value) {
            if (count == values.length) values = Arrays.copyOf(values, count * 2);
            values[count++] = value;
        }

        void addAll(Samples others) {
            for (int i = 0; i < others.count; i++) add(others.values[i]);
        }
    }

    /** Every client acquires and releases, over and over: one lock for all, or one for each. */
    private Map<String, Object> run(int clients, int secs, String pids) throws Exception {
        Tally[] tallies = new Tally[clients];
        Thread[] threads = new Thread[clients];
        for (int i = 0; i < clients; i++) {
            int client = i;
            tallies[i] = new Tally();
            threads[i] = new Thread(() -> {
                while (System.nanoTime() < until) once(client, tallies[client]);
            });
            threads[i].setDaemon(true);
            threads[i].start();
        }
        sleepUntil(from);
        double servers = cpu(pids), own = cpu("self");
        long packets = loopbackPackets();
        sleepUntil(until);
        servers = cpu(pids) - servers;
        own = cpu("self") - own;
        packets = loopbackPackets() - packets;
        for (Thread thread : threads) thread.join(Math.max(1, (until + PATIENCE - System.nanoTime()) / 1_000_000));
        Map<String, Object> row = new TreeMap<>();
        int grants = sum(row, tallies, secs);
        row.put("server_cpu_s", servers);
        row.put("client_cpu_s", own);
        if (grants > 0) {
            row.put("server_cpu_s_per_kop", servers / grants * 1000);
            row.put("lo_packets_per_op", (double) packets / grants);
        }
        return row;
    }

    private void once(int client, Tally tally) {
        try {
            long asked = System.nanoTime();
            Locks.Held held = locks.acquire(client, shared ? name : name + client);
            long granted = System.nanoTime(), last = released.get();
            released.set(System.nanoTime());
            held.release();
            if (granted < from || granted >= until) return;
            synchronized (tally) {
                tally.grants++;
                tally.acquires.add(granted - asked);
                if (shared && last != 0) tally.handOvers.add(granted - last);
            }
        } catch (Exception error) {
            failed(client, tally, error);
        }
    }

    private void failed(int client, Tally tally, Exception error) {
        // What is cut off after the window is no error.
        if (System.nanoTime() >= until) return;
        synchronized (tally) {
            tally.errors++;
            if (tally.errors == 1 && client == 0) error.printStackTrace();
        }
        try {
            Thread.sleep(5);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static int sum(Map<String, Object> row, Tally[] tallies, int secs) {
        Samples acquires = new Samples(), handOvers = new Samples();
        int grants = 0, errors = 0;
        double total = 0, squares = 0;
        for (Tally tally : tallies) {
            synchronized (tally) {
                acquires.addAll(tally.acquires);
                handOvers.addAll(tally.handOvers);
                grants += tally.grants;
                errors += tally.errors;
                total += tally.grants;
                squares += (double) tally.grants * tally.grants;
            }
        }
        row.put("ops", grants);
        row.put("errors", errors);
        row.put("ops_per_s", (double) grants / secs);
        if (squares > 0) row.put("jain", total * total / (tallies.length * squares));
        percentiles(row, "acq", acquires);
        percentiles(row, "ho", handOvers);
        return grants;
    }

    private static void percentiles(Map<String, Object> row, String name, Samples samples) {
        if (samples.count == 0) return;
        long[] values = Arrays.copyOf(samples.values, samples.count);
        Arrays.sort(values);
        row.put(name + "_p50_us", values[values.length / 2] / 1e3);
        row.put(name + "_p99_us", values[Math.min(values.length - 1, (int) (0.99 * values.length))] / 1e3);
    }

    private static void sleepUntil(long instant) throws InterruptedException {
        long left = instant - System.nanoTime();
        if (left > 0) Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
    }

    /** User and system time of processes, seconds. */
    private static double cpu(String pids) throws Exception {
        double seconds = 0;
        for (String pid : pids.split(",")) {
            if (pid.isEmpty()) continue;
            String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
            String[] words = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            seconds += (Double.parseDouble(words[11]) + Double.parseDouble(words[12])) / 100;
        }
        return seconds;
    }

    /** Packets over lo in this network namespace. */
    private static long loopbackPackets() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/net/dev"))) {
            String[] words = line.trim().split("\\s+");
            if (words[0].equals("lo:")) return Long.parseLong(words[2]);
        }
        return 0;
    }
}
