package peer;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

/** A TCP proxy on a free loopback port that keeps every byte of every connection, one stream for each direction. */
final class Proxy implements AutoCloseable {
    /** The bytes of one connection, in the order the client opened them. */
    static final class Connection {
        final ByteArrayOutputStream toServer = new ByteArrayOutputStream();
        final ByteArrayOutputStream toClient = new ByteArrayOutputStream();
        private final Socket client;
        private final Socket server = new Socket();
        private final List<Thread> threads = new ArrayList<>();

        private Connection(Socket client) {
            this.client = client;
        }
    }

    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final List<Connection> connections = new ArrayList<>();
    private volatile InetSocketAddress target;

    Proxy(InetSocketAddress target) throws IOException {
        this.target = target;
        Thread t = new Thread(this::accept, "proxy-accept");
        t.setDaemon(true);
        t.start();
    }

    int port() {
        return listener.getLocalPort();
    }

    private void accept() {
        try {
            while (true) {
                Connection c = new Connection(listener.accept());
                c.client.setTcpNoDelay(true);
                c.server.setTcpNoDelay(true);
                c.server.connect(target, 5000);
                synchronized (connections) {
                    connections.add(c);
                }
                copy(c, c.client, c.server, c.toServer);
                copy(c, c.server, c.client, c.toClient);
            }
        } catch (IOException e) {
            // closed
        }
    }

    private static void copy(Connection c, Socket from, Socket to, ByteArrayOutputStream record) {
        Thread t = new Thread(() -> {
            byte[] buffer = new byte[65536];
            try {
                InputStream in = from.getInputStream();
                OutputStream out = to.getOutputStream();
                for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
                    synchronized (record) {
                        record.write(buffer, 0, n);
                    }
                    out.write(buffer, 0, n);
                }
                to.shutdownOutput();
            } catch (IOException e) {
                closeQuietly(from);
                closeQuietly(to);
            }
        }, "proxy-copy");
        t.setDaemon(true);
        c.threads.add(t);
        t.start();
    }

    private static void closeQuietly(Socket s) {
        try {
            s.close();
        } catch (IOException e) {
            // nothing to do
        }
    }

    /** Sends the connections made from now on to another server. */
    void retarget(InetSocketAddress server) {
        target = server;
    }

    /** Waits until the connections made since the last call are closed, and gives them back in the order they were made. */
    List<Connection> take() throws InterruptedException {
        List<Connection> out;
        synchronized (connections) {
            out = new ArrayList<>(connections);
            connections.clear();
        }
        for (Connection c : out) {
            for (Thread t : c.threads) {
                t.join(5000);
                if (t.isAlive()) {
                    throw new IllegalStateException("a recorded connection is still open 5 s after its client was closed");
                }
            }
            closeQuietly(c.client);
            closeQuietly(c.server);
        }
        return out;
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }
}
