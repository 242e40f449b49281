//go:build integration && !race

package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// killEnv is the variable of killpoints.go, which this test is built without.
const killEnv = "LUCIUS_TEST_KILL_AT"

// around returns the kill points before and after each of these writes.
func around(writes ...string) (points []string) {
	for _, write := range writes {
		points = append(points, "before."+write, "after."+write)
	}
	return points
}

// TestCrash_AtNamedPoints makes the server kill itself between two of its writes, under
// load: at one point, and after each restart at the next one. See killpoints.go for what
// the points mean. The last start is of the binary as it is shipped.
func TestCrash_AtNamedPoints(t *testing.T) {
	t.Parallel()
	for name, points := range map[string][]string{
		"an accept, write by write": around(
			"jobidempotency.insert", "luciusqueue.put", "luciusjobindex.put", "luciusschedule.put", "commit.accept"),
		"a step's work, write by write": around(
			"luciusqueue.insert", "commit.ack", "luciusqueue.discard", "luciusledger.replace", "commit.result"),
		"what ends an attempt or a job, write by write": around(
			"commit.deadline_passed", "luciusschedule.discard"),
		"changes in one write": around(
			"whole.accept", "whole.ack", "whole", "whole.result", "whole.deadline_passed"),
		"answers that are not sent": {
			"before.answer.commands", "before.answer.claim", "before.answer.heartbeat", "before.answer.complete", "before.answer.fail"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newSite(t).dieAt(points)
		})
	}
}

// TestCrash_AtNamedPointsOfHeldRows is the same during a ramp: every row is held at first,
// and marked by the relay.
func TestCrash_AtNamedPointsOfHeldRows(t *testing.T) {
	t.Parallel()
	for name, points := range map[string][]string{
		"write by write": around(
			"commit.accept", "luciusschedule.put", "luciusqueue.put", "commit.published", "luciusschedule.discard",
			"commit.result", "commit.deadline_passed"),
		"in one write": around("whole.accept", "whole.published", "whole.result", "whole.deadline_passed"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			server := s.start()
			paused, err := s.client.CreatePauseWithResponse(t.Context(), api.PauseRequest{All: true, Reason: "crash"})
			if err != nil || paused.JSON200 == nil {
				t.Fatalf("pause: %v, %s", err, bodyOf(paused))
			}
			ramp := api.ResumeRequest{RampSeconds: new(3600.0)}
			resumed, err := s.client.ResumePauseWithResponse(t.Context(), paused.JSON200.PauseID, ramp)
			if err != nil || resumed.JSON200 == nil {
				t.Fatalf("resume: %v, %s", err, bodyOf(resumed))
			}
			server.kill()
			s.dieAt(points)
		})
	}
}

// dieAt makes a server under load kill itself at one point after another, and expects every
// job to succeed.
func (s *site) dieAt(points []string) {
	s.t.Helper()
	l := startLoad(s, 20*time.Millisecond)
	for i, point := range points {
		p, _ := s.startToDie(fmt.Sprintf("%s:%d", point, 1+i%5*3))
		p.expectDeath(point)
	}
	server := s.start()
	jobs := l.drain()
	server.terminate()
	auditClean(s.t, s.data, jobs)
}

// TestCrash_WhileStartingAndStopping makes the server kill itself in its first write,
// before it serves, and while it closes its store.
func TestCrash_WhileStartingAndStopping(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := startLoad(s, 20*time.Millisecond)
	for _, point := range append([]string{"after.open"}, around("luciusschedule.insert")...) {
		p, serves := s.startToDie(point + ":1")
		p.expectDeath(point)
		if serves {
			t.Errorf("%s came after the server served", point)
		}
	}
	for _, point := range around("close") {
		p, _ := s.startToDie(point + ":1")
		l.more()
		p.signal(syscall.SIGTERM)
		p.expectDeath(point)
	}
	server := s.start()
	jobs := l.drain()
	server.terminate()
	auditClean(t, s.data, jobs)
}

// startToDie starts a server that kills itself at the point, and reports whether it got as
// far as serving. More flags win over the usual ones.
func (s *site) startToDie(point string, more ...string) (*process, bool) {
	s.t.Helper()
	binary, err := buildKillable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(binary, s.arguments(more)...)
	cmd.Env = append(os.Environ(), killEnv+"="+point)
	return s.launch(cmd)
}

// expectDeath fails unless the process kills itself.
func (p *process) expectDeath(point string) {
	p.t.Helper()
	p.wait()
	if !p.killed() {
		p.t.Fatalf("at %s the server ended otherwise: %s", point, p.ending())
	}
}
