import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import io.confluent.parallelconsumer.PollContext;
import io.confluent.parallelconsumer.internal.DrainingCloseable.DrainingMode;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Consumers of one process with Confluent's parallel-consumer: the twin of load.py.
 *
 * <p>Arguments are name=value, written by parallel_consumer.py. It fills the board of the trial
 * (board.py) and a file of samples (samples.py). Ends with one line of complaint and exit code 1
 * when a consumer fails.
 */
public final class ParallelConsumerLoad {
    private static final long LOOK_MS = 20;
    private static final Duration CLOSE = Duration.ofSeconds(20);

    private final Job job;
    private final Board board;
    private final long[] times;
    private final Queue<Rows> allRows = new ConcurrentLinkedQueue<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private ParallelConsumerLoad(Job job) throws IOException {
        this.job = job;
        this.board = new Board(job);
        this.times = readTimes(Path.of(job.text("times")));
    }

    public static void main(String[] args) {
        try {
            new ParallelConsumerLoad(new Job(args)).run();
        } catch (Throwable error) {
            System.err.println(inOneLine(error));
            // The pools of consumers that still run must not keep the process alive.
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static String inOneLine(Throwable error) {
        StringBuilder line = new StringBuilder(error.toString());
        for (Throwable why = error.getCause(); why != null; why = why.getCause()) {
            line.append(": ").append(why);
        }
        return line.toString();
    }

    private void run() throws Exception {
        job.checkClock();
        long beganNs = System.nanoTime();
        List<ParallelStreamProcessor<byte[], byte[]>> processors = new ArrayList<>();
        for (int place = 0; place < job.number("consumers"); place++) {
            processors.add(open(place));
        }
        board.setReady(job.number("process"), beganNs);
        while (!board.stopped()) {
            Thread.sleep(LOOK_MS);
            check(processors);
        }
        close(processors);
        if (failure.get() != null) {
            throw new IllegalStateException("a handler failed", failure.get());
        }
        Rows.write(allRows, Path.of(job.text("samples")));
    }

    private void check(List<ParallelStreamProcessor<byte[], byte[]>> processors) {
        if (failure.get() != null) {
            throw new IllegalStateException("a handler failed", failure.get());
        }
        for (ParallelStreamProcessor<byte[], byte[]> each : processors) {
            if (each.isClosedOrFailed() && !board.stopped()) {
                throw new IllegalStateException("a parallel-consumer ended by itself");
            }
        }
    }

    private ParallelStreamProcessor<byte[], byte[]> open(int place) {
        Map<String, Object> config = new HashMap<>();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, job.text("bootstrap_servers"));
        config.put(ConsumerConfig.GROUP_ID_CONFIG, job.text("group"));
        config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        config.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        if (job.number("max_poll_records") > 0) {
            config.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, job.number("max_poll_records"));
        }
        int batch = job.number("batch");
        var options =
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .consumer(
                                new KafkaConsumer<>(
                                        config,
                                        new ByteArrayDeserializer(),
                                        new ByteArrayDeserializer()))
                        .ordering(ProcessingOrder.valueOf(job.text("ordering")))
                        .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                        .maxConcurrency(job.number("slots"));
        if (batch > 0) {
            options.batchSize(batch);
        }
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options.build());
        processor.subscribe(List.of(job.text("topic")));
        processor.poll(handler(new Hand(place), batch > 0));
        return processor;
    }

    /** What each record, or each batch of them, is given to; its complaints end the trial. */
    private Consumer<PollContext<byte[], byte[]>> handler(Hand hand, boolean batches) {
        boolean perRecord = job.flag("per_record");
        return context -> {
            // What still waits in queues when the trial is over is nobody's work.
            if (board.stopped()) {
                return;
            }
            try {
                List<ConsumerRecord<byte[], byte[]>> records =
                        batches
                                ? context.getConsumerRecordsFlattened()
                                : List.of(context.getSingleConsumerRecord());
                if (!perRecord) {
                    hand.look(records, batches);
                } else {
                    for (ConsumerRecord<byte[], byte[]> each : records) {
                        hand.handle(each);
                    }
                }
            } catch (RuntimeException error) {
                failure.compareAndSet(null, error);
                throw error;
            }
        };
    }

    private static void close(List<ParallelStreamProcessor<byte[], byte[]>> processors)
            throws InterruptedException {
        // All at once: one after the other they would take as many round trips.
        List<Thread> closers = new ArrayList<>();
        for (ParallelStreamProcessor<byte[], byte[]> each : processors) {
            Thread closer = new Thread(() -> each.close(CLOSE, DrainingMode.DONT_DRAIN));
            // The samples are complete: a close that fails changes no figure.
            closer.setUncaughtExceptionHandler((thread, error) -> {});
            closer.setDaemon(true);
            closer.start();
            closers.add(closer);
        }
        long deadlineNs = System.nanoTime() + CLOSE.toNanos();
        for (Thread closer : closers) {
            long leftMs = TimeUnit.NANOSECONDS.toMillis(deadlineNs - System.nanoTime());
            closer.join(Math.max(1, leftMs));
        }
    }

    private static long[] readTimes(Path path) throws IOException {
        var longs = ByteBuffer.wrap(Files.readAllBytes(path)).order(ByteOrder.nativeOrder());
        long[] read = new long[longs.remaining() / Long.BYTES];
        longs.asLongBuffer().get(read);
        return read;
    }

    /** One consumer of the cell: what its threads count with, and how long they work. */
    private final class Hand {
        private final int consumer;
        private final int firstTime;
        private final int timesLength;
        private final AtomicInteger turn = new AtomicInteger();
        private final ThreadLocal<Rows> rows =
                ThreadLocal.withInitial(
                        () -> {
                            Rows made = new Rows();
                            allRows.add(made);
                            return made;
                        });

        Hand(int place) {
            consumer = job.number("first_consumer") + place;
            timesLength = job.number("times_length");
            firstTime = place * timesLength;
        }

        void handle(ConsumerRecord<byte[], byte[]> record) {
            long beganNs = System.nanoTime();
            ByteBuffer head = ByteBuffer.wrap(record.value()).order(ByteOrder.LITTLE_ENDIAN);
            long intendedNs = head.getLong(0);
            long number = head.getLong(Long.BYTES);
            sleep(nextNs(), beganNs);
            boolean measured = job.flag("latency") && number != Board.NO_NUMBER;
            long latencyNs = measured ? beganNs - intendedNs : Rows.NO_LATENCY;
            rows.get().add(consumer, 1, beganNs, System.nanoTime() - beganNs, latencyNs);
            if (number != Board.NO_NUMBER) {
                board.see(number);
            }
            board.count(consumer, 1);
        }

        void look(List<ConsumerRecord<byte[], byte[]>> records, boolean whole) {
            long valueBytes = 0;
            for (ConsumerRecord<byte[], byte[]> each : records) {
                valueBytes += each.value().length;
            }
            long expected = (long) records.size() * job.number("payload_bytes");
            if (valueBytes != expected) {
                throw new IllegalStateException(
                        records.size() + " records had " + valueBytes
                                + " bytes: not those of the topic");
            }
            rows.get().look(consumer, records.size(), whole);
            board.count(consumer, records.size());
        }

        private long nextNs() {
            return times[firstTime + (turn.getAndIncrement() & Integer.MAX_VALUE) % timesLength];
        }

        private static void sleep(long workNs, long beganNs) {
            // Thread.sleep rounds to milliseconds.
            for (long leftNs = workNs; leftNs > 0; leftNs = beganNs + workNs - System.nanoTime()) {
                LockSupport.parkNanos(leftNs);
            }
        }
    }

    /** What this process is told. */
    private static final class Job {
        private static final long CLOCK_APART_NS = TimeUnit.MINUTES.toNanos(5);
        private final Map<String, String> texts = new HashMap<>();
        private final Map<String, Long> numbers = new HashMap<>();

        Job(String[] args) {
            for (String each : args) {
                int equals = each.indexOf('=');
                String name = each.substring(0, equals);
                String value = each.substring(equals + 1);
                texts.put(name, value);
                if (value.matches("-?[0-9]{1,18}")) {
                    numbers.put(name, Long.parseLong(value));
                }
            }
        }

        String text(String name) {
            return texts.get(name);
        }

        int number(String name) {
            return Math.toIntExact(numbers.get(name));
        }

        boolean flag(String name) {
            return numbers.get(name) != 0;
        }

        /** Refuses a Java whose clock is not the monotonic clock of the other processes. */
        void checkClock() {
            long apartNs = System.nanoTime() - numbers.get("clock_ns");
            if (apartNs < 0 || apartNs > CLOCK_APART_NS) {
                throw new IllegalStateException(
                        "System.nanoTime() of this Java is not the monotonic clock: " + apartNs
                                + " ns apart; use OpenJDK on Linux");
            }
        }
    }

    /** The file that all processes of a trial map; see board.py. */
    private static final class Board {
        static final long NO_NUMBER = -1;
        private static final VarHandle WORDS =
                MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());
        private static final int STOP = 0;
        private static final int READY = 1;
        private final MappedByteBuffer map;
        private final int counts;
        private final int seen;

        Board(Job job) throws IOException {
            counts = READY + job.number("processes");
            seen = (counts + 2 * job.number("all_consumers")) * Long.BYTES;
            try (FileChannel file =
                    FileChannel.open(
                            Path.of(job.text("board")),
                            StandardOpenOption.READ,
                            StandardOpenOption.WRITE)) {
                map = file.map(FileChannel.MapMode.READ_WRITE, 0, file.size());
            }
        }

        boolean stopped() {
            return (long) WORDS.getVolatile(map, STOP * Long.BYTES) != 0;
        }

        void setReady(int process, long beganNs) {
            WORDS.setVolatile(map, (READY + process) * Long.BYTES, beganNs);
        }

        void count(int consumer, int records) {
            WORDS.getAndAdd(map, (counts + consumer) * Long.BYTES, (long) records);
        }

        void see(long number) {
            map.put(Math.toIntExact(seen + number), (byte) 1);
        }
    }

    /** Samples of one thread: columns that grow; see samples.py. */
    private static final class Rows {
        static final long NO_LATENCY = -1;
        private static final long BUCKET_NS = TimeUnit.MILLISECONDS.toNanos(5);
        private static final int HEADER_BYTES = Long.BYTES;
        private int size;
        private int[] consumers = new int[1024];
        private int[] records = new int[1024];
        private long[] beganNs = new long[1024];
        private long[] busyNs = new long[1024];
        private long[] latencyNs = new long[1024];
        private int bucketConsumer;
        private int bucketRecords;
        private long bucketLastNs;
        private long bucketDueNs = System.nanoTime();

        synchronized void add(int consumer, int count, long began, long busy, long latency) {
            if (size == consumers.length) {
                consumers = Arrays.copyOf(consumers, 2 * size);
                records = Arrays.copyOf(records, 2 * size);
                beganNs = Arrays.copyOf(beganNs, 2 * size);
                busyNs = Arrays.copyOf(busyNs, 2 * size);
                latencyNs = Arrays.copyOf(latencyNs, 2 * size);
            }
            consumers[size] = consumer;
            records[size] = count;
            beganNs[size] = began;
            busyNs[size] = busy;
            latencyNs[size] = latency;
            size++;
        }

        /** Counts records that were only looked at; single ones are gathered for some time. */
        synchronized void look(int consumer, int count, boolean whole) {
            long nowNs = System.nanoTime();
            bucketConsumer = consumer;
            bucketRecords += count;
            bucketLastNs = nowNs;
            if (whole || nowNs - bucketDueNs >= 0) {
                bucketDueNs = nowNs + BUCKET_NS;
                flush();
            }
        }

        private void flush() {
            if (bucketRecords > 0) {
                add(bucketConsumer, bucketRecords, bucketLastNs, 0, NO_LATENCY);
                bucketRecords = 0;
            }
        }

        static void write(Iterable<Rows> parts, Path path) throws IOException {
            List<Rows> all = new ArrayList<>();
            long total = 0;
            for (Rows each : parts) {
                // A handler that outlived the close may still add to its own rows, not to these.
                Rows copy = each.snapshot();
                all.add(copy);
                total += copy.size;
            }
            try (FileChannel file =
                    FileChannel.open(
                            path, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                var header = ByteBuffer.allocate(HEADER_BYTES).order(ByteOrder.nativeOrder());
                file.write(header.putLong(0, total));
                for (Rows each : all) {
                    ints(file, each.consumers, each.size);
                }
                for (Rows each : all) {
                    ints(file, each.records, each.size);
                }
                for (Rows each : all) {
                    longs(file, each.beganNs, each.size);
                }
                for (Rows each : all) {
                    longs(file, each.busyNs, each.size);
                }
                for (Rows each : all) {
                    longs(file, each.latencyNs, each.size);
                }
            }
        }

        private synchronized Rows snapshot() {
            flush();
            Rows copy = new Rows();
            copy.size = size;
            copy.consumers = Arrays.copyOf(consumers, size);
            copy.records = Arrays.copyOf(records, size);
            copy.beganNs = Arrays.copyOf(beganNs, size);
            copy.busyNs = Arrays.copyOf(busyNs, size);
            copy.latencyNs = Arrays.copyOf(latencyNs, size);
            return copy;
        }

        private static void ints(FileChannel file, int[] column, int size) throws IOException {
            var bytes = ByteBuffer.allocate(size * Integer.BYTES).order(ByteOrder.nativeOrder());
            bytes.asIntBuffer().put(column, 0, size);
            writeAll(file, bytes);
        }

        private static void longs(FileChannel file, long[] column, int size) throws IOException {
            var bytes = ByteBuffer.allocate(size * Long.BYTES).order(ByteOrder.nativeOrder());
            bytes.asLongBuffer().put(column, 0, size);
            writeAll(file, bytes);
        }

        private static void writeAll(FileChannel file, ByteBuffer bytes) throws IOException {
            while (bytes.hasRemaining()) {
                file.write(bytes);
            }
        }
    }
}
