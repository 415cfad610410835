import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.lock.FencedLock;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Takes locks of one peer for clients, each of which is a thread. */
interface Locks {
    /** Returns once the client holds the lock. */
    Held acquire(int client, String name) throws Exception;

    /** A lock that is held. */
    interface Held {
        void release() throws Exception;
    }

    static Locks of(String peer, String[] endpoints, int connections, int ttlSeconds) throws Exception {
        return switch (peer) {
            case "zookeeper" -> new Curator(endpoints, connections, ttlSeconds);
            case "hazelcast" -> new Hazelcast(endpoints);
            default -> throw new IllegalArgumentException("unknown peer " + peer);
        };
    }

    /** Curator's InterProcessMutex: a session for each connection, and the connections spread over the servers. */
    final class Curator implements Locks {
        private final CuratorFramework[] sessions;

        Curator(String[] endpoints, int connections, int ttlSeconds) throws Exception {
            sessions = new CuratorFramework[connections];
            for (int i = 0; i < connections; i++) {
                String endpoint = endpoints[i % endpoints.length];
                sessions[i] = CuratorFrameworkFactory.newClient(endpoint, ttlSeconds * 1000, 5000, new RetryOneTime(100));
                sessions[i].start();
                sessions[i].blockUntilConnected();
            }
        }

        public Held acquire(int client, String name) throws Exception {
            InterProcessMutex mutex = new InterProcessMutex(sessions[client % sessions.length], "/" + name);
            mutex.acquire();
            return mutex::release;
        }
    }

    /** FencedLock of the CP subsystem: one client, which connects to every member. */
    final class Hazelcast implements Locks {
        private final HazelcastInstance client;

        Hazelcast(String[] endpoints) {
            ClientConfig config = new ClientConfig();
            config.setProperty("hazelcast.logging.type", "none");
            config.getNetworkConfig().addAddress(endpoints).setSmartRouting(true);
            client = HazelcastClient.newHazelcastClient(config);
        }

        public Held acquire(int owner, String name) {
            FencedLock lock = client.getCPSubsystem().getLock(name);
            lock.lockAndGetFence();
            return lock::unlock;
        }
    }
}
