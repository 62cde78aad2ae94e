import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;

/** Writes golden.txt: java -cp 'libs/*' Golden.java, with the jars of Kafka 4.3.1. */
public class Golden {
    public static void main(String[] args) {
        for (byte magic = 0; magic < 3; magic++)
            for (TimestampType time : new TimestampType[] {TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME})
                for (CompressionType codec : CompressionType.values())
                    // Formats learnt things one after the other.
                    if ((magic > 0 || time == TimestampType.CREATE_TIME) && (magic > 1 || codec != CompressionType.ZSTD))
                        System.out.println("v" + magic + " " + time + " " + codec.name + " " + written(magic, time, codec));
    }

    private static String written(byte magic, TimestampType time, CompressionType codec) {
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
            ByteBuffer.allocate(4096), magic, Compression.of(codec).build(), time, 40L, 1600000000999L, -1L,
            (short) -1, -1, false, false, 7, 4096);
        long at = magic == 0 ? -1 : 1600000000000L;
        builder.appendWithOffset(40L, at, "k0".getBytes(), "value value value value value 0".getBytes());
        builder.appendWithOffset(42L, magic == 0 ? -1 : at + 5, null, "value value value value value 1".getBytes());
        builder.appendWithOffset(43L, magic == 0 ? -1 : at + 3, "".getBytes(), null);
        MemoryRecords records = builder.build();
        byte[] bytes = new byte[records.sizeInBytes()];
        records.buffer().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
