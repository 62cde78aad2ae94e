import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;

/**
 * Runs programs of Kafka one after the other: a start of the JVM takes seconds.
 *
 * A line of standard input is a class and its arguments, with tabs between them; a line of standard
 * output is the exit code and what the program has printed, in base64.
 */
public class KafkaTools {
    private static final class Exited extends RuntimeException {
        final int code;

        Exited(int code, String message) {
            super(message);
            this.code = code;
        }
    }

    public static void main(String[] none) throws Exception {
        catchExits();
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split("\t");
            ByteArrayOutputStream shown = new ByteArrayOutputStream();
            PrintStream printed = new PrintStream(shown, true, StandardCharsets.UTF_8);
            System.setOut(printed);
            System.setErr(printed);
            int code = run(words[0], Arrays.copyOfRange(words, 1, words.length));
            out.println(code + "\t" + Base64.getEncoder().encodeToString(shown.toByteArray()));
            out.flush();
        }
    }

    private static int run(String name, String[] arguments) throws Exception {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Exited) {
                return ((Exited) error.getCause()).code;
            }
            error.getCause().printStackTrace();
            return 1;
        }
    }

    /** Kafka's own hook for tests, which has moved in 4.4. */
    private static void catchExits() throws Exception {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        } catch (ClassNotFoundException moved) {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object hook = Proxy.newProxyInstance(procedure.getClassLoader(), new Class<?>[] {procedure}, (self, method, given) -> {
            throw new Exited((int) given[0], (String) given[1]);
        });
        exit.getMethod("setExitProcedure", procedure).invoke(null, hook);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, hook);
    }
}
