// The functions every runner is checked with (`headway runner check`).
public class Functions {
    static Object echo(Object value) { return value; }
    static long add(long a, long b) { return a + b; }
    static void nothing() {}
    static void hello() { System.out.println("hello from the function"); }
    static void steps() { System.out.println("headway progress 1/2 half way"); }
    static void fail(String why) { throw new IllegalStateException(why); }
    static void crash() { Runtime.getRuntime().halt(9); }
}
