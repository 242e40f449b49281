//go:build !race

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// The process ends within a second of the illegal transition, on the clock of the process.
func TestDefect_EndsTheProcessWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		exits := make(chan int, 1)
		exitSoon(func(code int) { exits <- code })(&seqledger.IllegalTransitionError{})
		synctest.Wait()
		if len(exits) > 0 {
			t.Errorf("it exits with %d at once, without an orderly stop", <-exits)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(exits) != 1 {
			t.Fatal("it does not exit within a second")
		}
		if code := <-exits; code != cli.ExitDefect {
			t.Errorf("it exits with %d", code)
		}
	})
}

// TestCrash_AnIllegalTransitionStopsTheServer breaks the window of a server's relay during
// a request for which it would wait an hour. It stops at once, with the facts in its log
// and a separate exit code, and the next server does the acknowledged work.
func TestCrash_AnIllegalTransitionStopsTheServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	binary, err := buildKillable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, s.arguments([]string{"--shutdown-grace", "1h"})...)
	cmd.Env = append(os.Environ(), "LUCIUS_TEST_BREAK_AT=before.answer.commands:20")
	server, serves := s.launch(cmd)
	if !serves {
		t.Fatalf("the server did not come up: %s", server.ending())
	}
	slow, err := net.Dial("tcp", s.address.Load().(string))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }() // The server ended it.
	if _, err := fmt.Fprint(slow, "POST /v1/commands HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	l := startLoad(s, 20*time.Millisecond)
	server.wait()
	if code := server.cmd.ProcessState.ExitCode(); code != cli.ExitDefect {
		t.Errorf("it exits with %d: %s", code, server.ending())
	}
	for _, fact := range []string{`"seq":18446744073709551615`, `"from":"UNSEEN"`, `"to":"COMMITTED"`, `"owner":""`, `"at":"`} {
		if !strings.Contains(server.said.String(), fact) {
			t.Errorf("the log has no %s: %s", fact, server.said.String())
		}
	}
	next := s.start()
	jobs := l.drain()
	next.terminate()
	auditClean(t, s.data, jobs)
}
