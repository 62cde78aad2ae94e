import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Clients of Kafka that want something else than share groups. Given an address and a topic it prints a line
 * for each: what it did, a tab, and the message of the exception that is the cause of what it got.
 */
public class WrongClients {
    private static String address;
    private static String topic;

    public static void main(String[] given) {
        address = given[0];
        topic = given[1];
        String settings = "asks for the settings of a topic";
        tell("produces", () -> produce(Map.of()));
        tell("produces with enable.idempotence=false", () -> produce(Map.of("enable.idempotence", "false")));
        tell("begins with transactions", WrongClients::beginTransactions);
        tell("subscribes as a plain consumer", () -> subscribe("classic"));
        tell("subscribes with group.protocol=consumer", () -> subscribe("consumer"));
        tell("reads an assigned partition", WrongClients::assign);
        try (Admin admin = Admin.create(config(Map.of()))) {
            tell("makes a topic", () -> admin.createTopics(List.of(new NewTopic("never", 1, (short) 1))).all().get());
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            tell(settings, () -> admin.describeConfigs(List.of(resource)).all().get());
            tell("describes a consumer group", () -> admin.describeConsumerGroups(List.of("g")).all().get());
        }
        System.exit(0);
    }

    private static void tell(String what, Callable<?> attempt) {
        try {
            System.out.println(what + "\t" + attempt.call());
        } catch (Exception error) {
            Throwable cause = error;
            while (cause.getCause() != null) cause = cause.getCause();
            System.out.println(what + "\t" + cause.getMessage());
        }
    }

    private static Map<String, Object> config(Map<String, String> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", address);
        return config;
    }

    private static Object produce(Map<String, String> more) throws Exception {
        try (var producer = new KafkaProducer<>(config(more), new StringSerializer(), new StringSerializer())) {
            return producer.send(new ProducerRecord<>(topic, "v")).get();
        }
    }

    private static Object beginTransactions() {
        var config = config(Map.of("transactional.id", "x"));
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            return "begun";
        }
    }

    private static Object subscribe(String protocol) {
        try (var consumer = consumer(Map.of("group.id", "g", "group.protocol", protocol))) {
            consumer.subscribe(Set.of(topic));
            return polled(consumer);
        }
    }

    private static Object assign() {
        try (var consumer = consumer(Map.of("auto.offset.reset", "earliest"))) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            return polled(consumer);
        }
    }

    private static Consumer<String, String> consumer(Map<String, String> more) {
        return new KafkaConsumer<>(config(more), new StringDeserializer(), new StringDeserializer());
    }

    private static String polled(Consumer<String, String> consumer) {
        return consumer.poll(Duration.ofSeconds(30)).count() + " records";
    }
}
