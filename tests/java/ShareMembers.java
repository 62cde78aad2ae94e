import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Share consumers that are driven over standard input and output, one JSON object per line.
 *
 * <p>A request is {"number": 7, "member": "m0", "call": "poll", ...}; its answer {"number": 7, "value": ...,
 * "heard": [...]}, or "error" and "text" in place of a value. "heard" is what the acknowledgement commit callback
 * was told since the member's last answer. Each member has a thread of its own, so one of them may wait in a poll
 * while others work; wakeup alone is called beside that thread. The program ends with its input.
 */
public class ShareMembers {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        // The client's log goes to the console.
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            Member member = MEMBERS.computeIfAbsent(request.get("member").asText(), Member::new);
            if (request.get("call").asText().equals("wakeup")) member.answer(request);
            else member.thread.execute(() -> member.answer(request));
        }
        System.exit(0);
    }

    private static final class Member {
        private final String name;
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private final Map<String, ConsumerRecord<byte[], byte[]>> polled = new HashMap<>();
        private final List<Object> heard = new ArrayList<>();
        private volatile KafkaShareConsumer<byte[], byte[]> consumer;

        Member(String name) {
            this.name = name;
        }

        void answer(JsonNode request) {
            Map<String, Object> answer = new HashMap<>();
            answer.put("number", request.get("number").asInt());
            boolean isWakeup = request.get("call").asText().equals("wakeup");
            try {
                answer.put("value", call(request));
            } catch (Throwable error) {
                answer.put("error", error.getClass().getSimpleName());
                answer.put("text", String.valueOf(error.getMessage()));
            }
            try {
                if (!isWakeup) {
                    answer.put("heard", List.copyOf(heard));
                    heard.clear();
                }
                String line = JSON.writeValueAsString(answer);
                synchronized (OUT) {
                    OUT.println(line);
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }

        private Object call(JsonNode request) {
            switch (request.get("call").asText()) {
                case "open":
                    open(request.get("config"));
                    return null;
                case "listen":
                    listen(request.get("throws").asBoolean());
                    return null;
                case "subscribe":
                    List<String> topics = new ArrayList<>();
                    request.get("topics").forEach(each -> topics.add(each.asText()));
                    consumer.subscribe(topics);
                    return null;
                case "unsubscribe":
                    consumer.unsubscribe();
                    return null;
                case "poll":
                    return poll(millis(request));
                case "acknowledge":
                    acknowledge(request);
                    return null;
                case "commit_sync":
                    return commitSync(millis(request));
                case "commit_async":
                    consumer.commitAsync();
                    return null;
                case "wakeup":
                    consumer.wakeup();
                    return null;
                case "lock_duration_ms":
                    return consumer.acquisitionLockTimeoutMs().orElse(null);
                case "metrics":
                    Map<String, Object> metrics = new TreeMap<>();
                    consumer.metrics().forEach((id, metric) -> metrics.put(id.name(), String.valueOf(metric.metricValue())));
                    return metrics;
                case "close":
                    consumer.close(millis(request));
                    MEMBERS.remove(name);
                    thread.shutdown();
                    return null;
                default:
                    throw new IllegalArgumentException(request.toString());
            }
        }

        private static Duration millis(JsonNode request) {
            return Duration.ofMillis(request.get("timeout_ms").asLong());
        }

        private void open(JsonNode given) {
            Map<String, Object> config = new HashMap<>();
            given.properties().forEach(each -> config.put(each.getKey(), each.getValue().asText()));
            consumer = new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            listen(false);
        }

        private void listen(boolean isFailing) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                String code = error == null ? null : Errors.forException(error).name();
                offsets.forEach((place, of) -> of.forEach(offset -> {
                    List<Object> each = new ArrayList<>(List.of(place.topic(), place.partition(), offset));
                    each.add(code);
                    heard.add(each);
                }));
                if (isFailing) throw new IllegalStateException("a callback that fails");
            });
        }

        private List<Object> poll(Duration timeout) {
            List<Object> found = new ArrayList<>();
            var records = consumer.poll(timeout);
            if (!records.isEmpty()) polled.clear();
            for (ConsumerRecord<byte[], byte[]> each : records) {
                polled.put(place(each.topic(), each.partition(), each.offset()), each);
                List<Object> headers = new ArrayList<>();
                for (Header header : each.headers()) {
                    List<Object> pair = new ArrayList<>(List.of(header.key()));
                    pair.add(header.value());
                    headers.add(pair);
                }
                Map<String, Object> told = new HashMap<>();
                told.put("topic", each.topic());
                told.put("partition", each.partition());
                told.put("offset", each.offset());
                told.put("delivery", each.deliveryCount().orElseThrow());
                told.put("timestamp_ms", each.timestamp());
                told.put("key", each.key());
                told.put("value", each.value());
                told.put("headers", headers);
                found.add(told);
            }
            return found;
        }

        private void acknowledge(JsonNode request) {
            String topic = request.get("topic").asText();
            int partition = request.get("partition").asInt();
            long offset = request.get("offset").asLong();
            AcknowledgeType type = AcknowledgeType.forId((byte) request.get("type").asInt());
            ConsumerRecord<byte[], byte[]> record = polled.get(place(topic, partition, offset));
            if (record == null) consumer.acknowledge(topic, partition, offset, type);
            else consumer.acknowledge(record, type);
        }

        private Map<String, Object> commitSync(Duration timeout) {
            Map<String, Object> found = new HashMap<>();
            consumer.commitSync(timeout).forEach((place, error) -> found.put(
                place.topic() + ":" + place.partition(), error.map(each -> Errors.forException(each).name()).orElse(null)));
            return found;
        }

        private static String place(String topic, int partition, long offset) {
            return topic + ":" + partition + ":" + offset;
        }
    }
}
