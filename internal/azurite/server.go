package azurite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
)

// account and key are Azurite's fixed and public credentials.
const (
	account = "devstoreaccount1"
	key     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// Server is one running Azurite. Its methods may be called concurrently.
type Server struct {
	process *exec.Cmd
	stdin   io.Closer
	drained chan struct{}
	port    string
	stop    sync.Once
}

// Start installs Azurite if need be and starts it in memory on a free loopback
// port. It returns when the server listens. ctx bounds the start and not the
// server, which runs until [Server.Stop] or until this process ends, even by a kill.
func Start(ctx context.Context) (*Server, error) {
	dir, err := install(ctx)
	if err != nil {
		return nil, fmt.Errorf("install azurite: %w", err)
	}
	server, err := start(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("start azurite: %w", err)
	}
	return server, nil
}

// start runs the installation in that directory.
func start(ctx context.Context, dir string) (*Server, error) {
	var complaints bytes.Buffer
	process := exec.CommandContext(context.WithoutCancel(ctx), "node", "run.js")
	process.Dir = dir
	process.Stderr = &complaints
	stdin, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	s := &Server{process: process, stdin: stdin, drained: make(chan struct{})}
	ports := make(chan string, 1)
	go s.drain(stdout, ports)
	select {
	case s.port = <-ports:
	case <-s.drained:
	case <-ctx.Done():
	}
	if s.port == "" {
		s.Stop()
		return nil, errors.Join(fmt.Errorf("it did not listen: %s", bytes.TrimSpace(complaints.Bytes())), ctx.Err())
	}
	return s, nil
}

// drain reads the server's output until it ends, and sends its port.
func (s *Server) drain(stdout io.Reader, ports chan<- string) {
	defer close(s.drained)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if port, ok := strings.CutPrefix(lines.Text(), "port "); ok {
			ports <- port
			break
		}
	}
	_, _ = io.Copy(io.Discard, stdout)
}

// Addr returns the host and port at which the server listens.
func (s *Server) Addr() string { return "127.0.0.1:" + s.port }

// ConnectionString returns a connection string for clients of Azure Tables.
func (s *Server) ConnectionString() string {
	return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;TableEndpoint=http://%s/%s;",
		account, key, s.Addr(), account)
}

// Stop kills the server, which loses its data, and waits until it has exited. Calling
// it again does nothing.
func (s *Server) Stop() {
	s.stop.Do(func() {
		_ = s.process.Process.Kill()
		<-s.drained
		_ = s.stdin.Close()
		_ = s.process.Wait() // It returns that the process was killed.
	})
}
