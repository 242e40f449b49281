//go:build integration && !race

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/waittest"
)

// The last write of a log that is to be damaged. It was not acknowledged.
const (
	lastTenant = "tenant_9"
	lastKey    = "last"
)

// TestLog_TornTailIsForgotten damages the last write in the log, as a power loss during the
// write does. The server starts, all earlier acknowledged commands are there, and the last
// command can be sent again.
func TestLog_TornTailIsForgotten(t *testing.T) {
	t.Parallel()
	data, synced, jobs := quietSite(t)
	for name, damage := range map[string]func(log []byte) []byte{
		"cut to its first byte": func(log []byte) []byte { return log[:synced+1] },
		"cut in the middle":     func(log []byte) []byte { return log[:(synced+len(log))/2] },
		"cut by a byte":         func(log []byte) []byte { return log[:len(log)-1] },
		"whole, its last byte flipped": func(log []byte) []byte {
			log[len(log)-1] ^= 1
			return log
		},
		"overwritten with noise":    func(log []byte) []byte { return append(log[:synced], noise(len(log)-synced)...) },
		"overwritten with zeros":    func(log []byte) []byte { return append(log[:synced], make([]byte, len(log)-synced)...) },
		"whole, with noise behind":  func(log []byte) []byte { return append(log, noise(100)...) },
		"whole, with zeros behind":  func(log []byte) []byte { return append(log, make([]byte, 100_000)...) },
		"whole, with a piece again": func(log []byte) []byte { return append(log, log[synced:synced+100]...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := damagedSite(t, data, damage)
			s.start().kill() // The second start reads past the torn tail as well.
			server := s.start()
			l := &load{t: t, site: s, accepted: maps.Clone(jobs)}
			l.mustSubmit(lastTenant, lastKey)
			l.finish()
			server.terminate()
			auditClean(t, s.data, l.jobs())
		})
	}
}

// TestLog_DamageBeforeItsEndIsRefused flips a byte of a write that was acknowledged
// long ago, which no crash does. The server refuses to start, since it would lose the
// writes after it.
func TestLog_DamageBeforeItsEndIsRefused(t *testing.T) {
	t.Parallel()
	data, synced, _ := quietSite(t)
	for name, at := range map[string]float64{"near its beginning": 0.05, "in the middle": 0.5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := damagedSite(t, data, func(log []byte) []byte {
				from := int(float64(synced) * at)
				log[from+bytes.Index(log[from:], []byte("tenant_0"))] ^= 1 // A byte of a row, not of a header of the log.
				return log
			})
			s.expectRefused("data directory cannot be read")
			s.expectRefused("data directory cannot be read")
		})
	}
}

// quietSite makes a data directory whose server was killed right after its last
// write. It returns the directory, how much of its log was synced before that
// write began, and the jobs that had ended until then. The log has several of
// the blocks of 32 KiB in which it is written: damage is told from a torn tail
// by the blocks after it.
func quietSite(t *testing.T) (dir string, synced int, jobs map[string]string) {
	t.Helper()
	s := newSite(t)
	server := s.start()
	l := &load{t: t, site: s, accepted: map[string]string{}}
	for i := range 40 {
		l.mustSubmit("tenant_0", fmt.Sprint("key-", i))
	}
	l.finish()
	path := logOf(t, s.data)
	for before := -1; before != synced; {
		time.Sleep(waittest.Scale(300 * time.Millisecond))
		before, synced = synced, sizeOf(t, path)
	}
	jobs = l.jobs()
	l.mustSubmit(lastTenant, lastKey)
	server.kill()
	if size := sizeOf(t, path); synced < 100_000 || size < synced+200 || path != logOf(t, s.data) {
		t.Fatalf("the log has %d bytes, %d of them before the last write", size, synced)
	}
	return s.data, synced, jobs
}

// mustSubmit sends a command that must be accepted.
func (l *load) mustSubmit(tenant, key string) {
	l.t.Helper()
	if !l.submit(l.t.Context(), tenant, key) {
		l.t.Fatalf("command %s/%s was not accepted", tenant, key)
	}
}

// finish runs workers until every accepted job has succeeded.
func (l *load) finish() {
	l.t.Helper()
	ctx, rest := context.WithCancel(l.t.Context())
	defer l.workers.Wait()
	defer rest()
	l.workers.Go(func() { l.work(ctx, "worker") })
	for name, id := range l.jobs() {
		l.await(name, id)
	}
}

// damagedSite returns a copy of the directory with another log.
func damagedSite(t *testing.T, dir string, damage func(log []byte) []byte) *site {
	t.Helper()
	s := newSite(t)
	if err := os.CopyFS(s.data, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	path := logOf(t, s.data)
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, damage(log), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// logOf returns the newest log of a data directory.
func logOf(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log in %s: %v", dir, err)
	}
	return logs[len(logs)-1]
}

func sizeOf(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// noise returns the same bytes in every run.
func noise(n int) []byte { return bytes.Repeat([]byte("\xa5lucius\x00\x17"), n/9+1)[:n] }
