import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A Java service that uses one RLock on command: each line of the input is a request, answered with
 * one line when it is done. The service ends with its input.
 */
public class Contender {
    private static volatile boolean contends;
    private static volatile int turns;

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        String url = args[0];
        if (args[1].equals("cluster")) {
            config.useClusterServers().addNodeAddress(url).setMasterConnectionMinimumIdleSize(2)
                .setSlaveConnectionMinimumIdleSize(2);
        } else {
            config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(2);
        }
        // A hold is renewed every third of this time.
        config.setLockWatchdogTimeout(Long.parseLong(args[3]));
        RedissonClient redisson = Redisson.create(config);
        RLock lock = redisson.getLock(args[2]);
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        Thread contender = null;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            switch (line) {
                case "lock":
                    lock.lock();
                    System.out.println("locked");
                    break;
                case "unlock":
                    lock.unlock();
                    System.out.println("unlocked");
                    break;
                case "contend":
                    contends = true;
                    contender = new Thread(() -> contend(lock));
                    contender.start();
                    System.out.println("contending");
                    break;
                case "turns":
                    System.out.println(turns);
                    break;
                case "stop":
                    contends = false;
                    contender.join();
                    System.out.println(turns);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        redisson.shutdown();
    }

    private static void contend(RLock lock) {
        while (contends) {
            lock.lock();
            turns++;
            lock.unlock();
        }
    }
}
