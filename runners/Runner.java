// A warm runner for Java: calls static methods for a Headway agent. The protocol is docs/runner-protocol.md.
//
// A function is "/folder/File.java:method" or "/folder/File.java:Class.method" (compiled in memory, again when it changed),
// "/folder/classes.jar:package.Class.method", or "package.Class:method" from the class path. A method takes Object, String, long,
// int, double, boolean, List or Map parameters; a JSON array becomes its arguments, anything else its one argument.
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Array;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.tools.Diagnostic;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.ToolProvider;

public class Runner {
    static final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    static final Map<String, Method> methods = new HashMap<>();
    static final Map<String, String> signatures = new HashMap<>();
    static final Map<String, ClassLoader> loaders = new HashMap<>();
    static String task = "0";

    static class Missing extends Exception {
        Missing(String why) { super(why); }
    }

    public static void main(String[] given) throws Exception {
        System.setOut(new PrintStream(new Said(), true, StandardCharsets.UTF_8));
        answer("ready", "1", "java " + System.getProperty("java.version"));
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split("\t", 6);
            if (words[0].equals("run") && words.length == 6) run(words);
        }
        System.exit(0);
    }

    static void answer(String... words) {
        out.print(String.join("\t", words) + "\n");
        out.flush();
    }

    /** What a function prints must not look like an answer: it is sent as text of its task. */
    static class Said extends ByteArrayOutputStream {
        @Override public synchronized void flush() {
            if (size() > 0) answer("say", task, Json.write(toString(StandardCharsets.UTF_8)));
            reset();
        }
    }

    static void run(String[] words) {
        task = words[1];
        System.setProperty("headway.task", words[1]);
        System.setProperty("headway.attempt", words[2]);
        System.setProperty("headway.deadline", words[3]);
        try {
            Method method = find(words[4]);
            Object input = new Json(words[5]).read();
            Object result = method.invoke(null, arguments(method, input));
            String encoded = Json.write(result);
            System.out.flush();
            answer("ok", task, encoded);
        } catch (Missing missing) {
            answer("missing", task, Json.write(missing.getMessage()));
        } catch (InvocationTargetException error) {
            fail(error.getCause());
        } catch (Throwable error) {
            fail(error);
        }
    }

    static void fail(Throwable error) {
        var trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace, true));
        System.out.flush();
        String message = error.getMessage() == null ? error.toString() : error.getMessage();
        answer("fail", task, error.getClass().getName(), Json.write(message), Json.write(trace.toString()));
    }

    static Method find(String name) throws Exception {
        int colon = name.lastIndexOf(':');
        String where = name.substring(0, colon), what = name.substring(colon + 1);
        if (where.startsWith("/")) {
            Path path = Path.of(where);
            if (!Files.exists(path)) throw new Missing("there is no file " + where + " on this node");
            String signature = Files.getLastModifiedTime(path) + "/" + Files.size(path);
            if (!signature.equals(signatures.get(where))) {
                methods.keySet().removeIf(known -> known.startsWith(where + ":"));
                loaders.put(where, where.endsWith(".java") ? compile(path) : jar(path));
                signatures.put(where, signature);
            }
        }
        Method known = methods.get(name);
        if (known != null) return known;
        Method found = look(where, what);
        methods.put(name, found);
        return found;
    }

    static Method look(String where, String what) throws Missing {
        int dot = what.lastIndexOf('.');
        String method = what.substring(dot + 1);
        String type = dot > 0 ? what.substring(0, dot) : where.startsWith("/") ? stem(where) : where;
        ClassLoader loader = loaders.getOrDefault(where, Runner.class.getClassLoader());
        try {
            for (Method each : Class.forName(type, true, loader).getDeclaredMethods()) {
                if (each.getName().equals(method) && Modifier.isStatic(each.getModifiers())) {
                    each.setAccessible(true);
                    return each;
                }
            }
        } catch (ClassNotFoundException | LinkageError error) {
            throw new Missing("there is no class " + type + " in " + where + ": " + error);
        }
        throw new Missing(where + " has no static method " + what);
    }

    static String stem(String where) {
        String name = Path.of(where).getFileName().toString();
        return name.substring(0, name.lastIndexOf('.'));
    }

    static ClassLoader jar(Path path) throws Exception {
        return new URLClassLoader(new URL[] {path.toUri().toURL()}, Runner.class.getClassLoader());
    }

    static ClassLoader compile(Path path) throws Exception {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        if (compiler == null) throw new Missing("this node has a Java runtime without a compiler");
        Path folder = Files.createTempDirectory("headway-java");
        var problems = new DiagnosticCollector<JavaFileObject>();
        try (var files = compiler.getStandardFileManager(problems, null, StandardCharsets.UTF_8)) {
            var options = List.of("-d", folder.toString(), "-cp", System.getProperty("java.class.path", "."));
            if (!compiler.getTask(null, files, problems, options, null, files.getJavaFileObjects(path)).call()) {
                var words = new StringBuilder();
                for (Diagnostic<?> problem : problems.getDiagnostics()) words.append(problem).append('\n');
                throw new Missing("compiling " + path + " failed: " + words);
            }
        }
        var classes = new HashMap<String, byte[]>();
        try (var found = Files.walk(folder)) {
            for (Path each : (Iterable<Path>) found.filter(file -> file.toString().endsWith(".class"))::iterator) {
                String name = folder.relativize(each).toString().replace('/', '.');
                classes.put(name.substring(0, name.length() - 6), Files.readAllBytes(each));
            }
        }
        try (var found = Files.walk(folder)) {
            found.sorted(java.util.Comparator.reverseOrder()).forEach(each -> each.toFile().delete());
        }
        return new ClassLoader(Runner.class.getClassLoader()) {
            @Override protected Class<?> findClass(String name) throws ClassNotFoundException {
                byte[] body = classes.get(name);
                if (body == null) throw new ClassNotFoundException(name);
                return defineClass(name, body, 0, body.length);
            }
        };
    }

    static Object[] arguments(Method method, Object input) {
        Class<?>[] types = method.getParameterTypes();
        List<?> given = input instanceof List<?> list ? list : input == null ? List.of() : List.of(input);
        if (types.length == 1 && input instanceof List<?> && types[0].isAssignableFrom(List.class) && types[0] == List.class) {
            given = List.of(input);
        }
        if (given.size() != types.length) {
            throw new IllegalArgumentException(method.getName() + " takes " + types.length + " arguments, the input has " + given.size());
        }
        Object[] found = new Object[types.length];
        for (int i = 0; i < types.length; i++) found[i] = as(types[i], given.get(i));
        return found;
    }

    static Object as(Class<?> type, Object value) {
        if (value instanceof Number number) {
            if (type == int.class || type == Integer.class) return Math.toIntExact(number.longValue());
            if (type == long.class || type == Long.class) return number.longValue();
            if (type == double.class || type == Double.class) return number.doubleValue();
        }
        return value;
    }

    /** JSON, as far as it is needed: the JDK has none. */
    static class Json {
        final String text;
        int at = 0;

        Json(String text) { this.text = text; }

        Object read() {
            char c = skip();
            switch (c) {
                case '{': return object();
                case '[': return list();
                case '"': return string();
                case 't': at += 4; return true;
                case 'f': at += 5; return false;
                case 'n': at += 4; return null;
                default: return number();
            }
        }

        char skip() {
            while (text.charAt(at) <= ' ') at++;
            return text.charAt(at);
        }

        Map<String, Object> object() {
            var found = new LinkedHashMap<String, Object>();
            at++;
            while (skip() != '}') {
                if (text.charAt(at) == ',') { at++; skip(); }
                String key = string();
                skip();
                at++;
                found.put(key, read());
            }
            at++;
            return found;
        }

        List<Object> list() {
            var found = new ArrayList<Object>();
            at++;
            while (skip() != ']') {
                if (text.charAt(at) == ',') at++;
                found.add(read());
            }
            at++;
            return found;
        }

        String string() {
            var found = new StringBuilder();
            for (at++; text.charAt(at) != '"'; at++) {
                char c = text.charAt(at);
                if (c != '\\') { found.append(c); continue; }
                switch (c = text.charAt(++at)) {
                    case 'n': found.append('\n'); break;
                    case 't': found.append('\t'); break;
                    case 'r': found.append('\r'); break;
                    case 'b': found.append('\b'); break;
                    case 'f': found.append('\f'); break;
                    case 'u': found.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16)); at += 4; break;
                    default: found.append(c);
                }
            }
            at++;
            return found.toString();
        }

        Number number() {
            int begin = at;
            while (at < text.length() && "+-0123456789.eE".indexOf(text.charAt(at)) >= 0) at++;
            String word = text.substring(begin, at);
            if (word.matches("-?\\d{1,18}")) return Long.parseLong(word);
            return Double.parseDouble(word);
        }

        static String write(Object value) {
            var found = new StringBuilder();
            write(found, value);
            return found.toString();
        }

        static void write(StringBuilder to, Object value) {
            if (value == null) to.append("null");
            else if (value instanceof CharSequence || value instanceof Character || value instanceof Enum) quote(to, value.toString());
            else if (value instanceof Double d && (d.isNaN() || d.isInfinite())) throw new IllegalArgumentException("the result holds " + d);
            else if (value instanceof Number || value instanceof Boolean) to.append(value);
            else if (value instanceof Map<?, ?> map) {
                String before = "{";
                for (var entry : map.entrySet()) {
                    quote(to.append(before), String.valueOf(entry.getKey()));
                    write(to.append(':'), entry.getValue());
                    before = ",";
                }
                to.append(map.isEmpty() ? "{}" : "}");
            } else if (value instanceof Iterable<?> items) {
                to.append('[');
                String before = "";
                for (Object item : items) { write(to.append(before), item); before = ","; }
                to.append(']');
            } else if (value.getClass().isArray()) {
                var items = new ArrayList<Object>();
                for (int i = 0; i < Array.getLength(value); i++) items.add(Array.get(value, i));
                write(to, items);
            } else throw new IllegalArgumentException("a result of " + value.getClass().getName() + " cannot be stored as JSON");
        }

        static void quote(StringBuilder to, String text) {
            to.append('"');
            for (int i = 0; i < text.length(); i++) {
                char c = text.charAt(i);
                if (c == '"' || c == '\\') to.append('\\').append(c);
                else if (c == '\n') to.append("\\n");
                else if (c == '\t') to.append("\\t");
                else if (c < ' ') to.append(String.format("\\u%04x", (int) c));
                else to.append(c);
            }
            to.append('"');
        }
    }
}
