import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import java.util.concurrent.TimeUnit;

/**
 * One Hazelcast member with the CP subsystem, whose state is in memory: the open edition stores none.
 *
 * <p>Arguments: its number from 0 on, the addresses of all members separated by commas, the TTL of sessions in seconds.
 */
public final class HazelcastMember {
    private static final int FIRST_PORT = 5701;

    public static void main(String[] args) throws Exception {
        int member = Integer.parseInt(args[0]), ttlSeconds = Integer.parseInt(args[2]);
        String[] addresses = args[1].split(",");
        Config config = new Config();
        config.setProperty("hazelcast.logging.type", "none").setProperty("hazelcast.phone.home.enabled", "false");
        config.getJetConfig().setEnabled(false);
        var network = config.getNetworkConfig();
        network.setPort(FIRST_PORT + member).setPortAutoIncrement(false).setPublicAddress(addresses[member]);
        network.getInterfaces().setEnabled(true).addInterface(addresses[member]);
        var join = network.getJoin();
        join.getAutoDetectionConfig().setEnabled(false);
        join.getMulticastConfig().setEnabled(false);
        join.getTcpIpConfig().setEnabled(true);
        for (int i = 0; i < addresses.length; i++) join.getTcpIpConfig().addMember(addresses[i] + ":" + (FIRST_PORT + i));
        config.getCPSubsystemConfig().setCPMemberCount(addresses.length).setSessionTimeToLiveSeconds(ttlSeconds)
                .setSessionHeartbeatIntervalSeconds(Math.max(1, ttlSeconds / 3)).setMissingCPMemberAutoRemovalSeconds(3600);
        HazelcastInstance instance = Hazelcast.newHazelcastInstance(config);
        instance.getCPSubsystem().getCPSubsystemManagementService().awaitUntilDiscoveryCompleted(60, TimeUnit.SECONDS);
        System.out.println("READY");
        Thread.sleep(Long.MAX_VALUE);
    }
}
