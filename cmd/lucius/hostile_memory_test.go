//go:build integration && !race

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lucius-project/lucius/api"
)

// TestHostile_ManyLists asks for pages of a thousand jobs with large references, many at
// a time. Each is answered.
func TestHostile_ManyLists(t *testing.T) {
	t.Parallel()
	const jobs, lists = 1000, 50
	f := startAttacked(t)
	ref := strings.Repeat("x", 1000)
	commands := make([]string, 100)
	for i := 0; i < jobs; i += len(commands) {
		for j := range commands {
			commands[j] = strings.NewReplacer("s3://in", "s3://"+ref, "s3://out", "s3://"+ref, "{}}", `{"language":"en"}}`).
				Replace(ingestFor("tenant_a", fmt.Sprint("l", i+j)))
		}
		f.want(t, http.StatusOK, http.MethodPost, "/v1/commands:batch", `{"commands":[`+strings.Join(commands, ",")+`]}`)
	}
	f.while(func() {
		var readers sync.WaitGroup
		for range lists {
			readers.Go(func() {
				got, err := f.as(f.token).call(t.Context(), http.MethodGet, "/v1/jobs?limit=1000", "")
				if err != nil || got.status != http.StatusOK || len(got.body) > 4<<20 {
					t.Errorf("a list is answered %d with %d bytes: %v", got.status, len(got.body), err)
				}
			})
		}
		readers.Wait()
	})
}

// TestHostile_LargeClaims claims a hundred large directives, and then repeats the claim many
// times concurrently. Each is answered once there is room for its answer.
func TestHostile_LargeClaims(t *testing.T) {
	t.Parallel()
	const jobs, batch, claims = 100, 5, 100
	f := startAttacked(t)
	payload := fmt.Sprintf(`{"language":"en","x":%q}`, strings.Repeat("x", 120_000))
	for i := 0; i < jobs; i += batch {
		commands := make([]string, batch)
		for j := range commands {
			commands[j] = strings.Replace(ingestFor("tenant_a", fmt.Sprint("c", i+j)), "{}}", payload+"}", 1)
		}
		f.want(t, http.StatusOK, http.MethodPost, "/v1/commands:batch", `{"commands":[`+strings.Join(commands, ",")+`]}`)
	}
	claim := `{"owner":"w","request_id":"r","max":100,"wait_seconds":20,"services":["extract"]}`
	first := len(f.want(t, http.StatusOK, http.MethodPost, "/v1/work:claim", claim).body)
	if first < 1<<20 {
		t.Fatalf("the claim is answered with %d bytes", first)
	}
	f.while(func() {
		var workers sync.WaitGroup
		for range claims {
			workers.Go(func() {
				got, err := f.as(f.token).call(t.Context(), http.MethodPost, "/v1/work:claim", claim)
				if err != nil || got.status != http.StatusOK || len(got.body) != first {
					t.Errorf("a claim is answered %d with %d bytes, want %d: %v", got.status, len(got.body), first, err)
				}
			})
		}
		workers.Wait()
	})
}

// TestMemory_OfWorkedJobs runs jobs with payloads of 60 kB through their three steps, some
// 120 MB in total: as much as the store keeps in memory.
func TestMemory_OfWorkedJobs(t *testing.T) {
	t.Parallel()
	const jobs, batch = 480, 16
	f := startAttacked(t)
	payload := fmt.Sprintf(`{"language":"en","x":%q}`, strings.Repeat("x", 60_000))
	f.while(func() {
		for i := 0; i < jobs; i += batch {
			commands := make([]string, batch)
			for j := range commands {
				commands[j] = strings.Replace(ingestFor("tenant_a", fmt.Sprint("m", i+j)), "{}}", payload+"}", 1)
			}
			f.want(t, http.StatusOK, http.MethodPost, "/v1/commands:batch", `{"commands":[`+strings.Join(commands, ",")+`]}`)
		}
		var workers sync.WaitGroup
		var done, claims atomic.Int64
		for range 4 {
			workers.Go(func() {
				worker := f.as(f.token)
				for done.Load() < 3*jobs && !t.Failed() {
					done.Add(workOnce(t, worker, claims.Add(1)))
				}
			})
		}
		workers.Wait()
	})
}

// workOnce claims some work and completes it. It returns the number of completed steps.
func workOnce(t *testing.T, worker *caller, claim int64) (done int64) {
	t.Helper()
	got, err := worker.call(t.Context(), http.MethodPost, "/v1/work:claim",
		fmt.Sprintf(`{"owner":"w","request_id":"m%d","wait_seconds":1,"start":true,"max":20,"services":["extract","embed","index"]}`, claim))
	var claimed api.ClaimedWork
	if err == nil {
		err = json.Unmarshal([]byte(got.body), &claimed)
	}
	for i := 0; err == nil && i < len(claimed.Items); i++ {
		item := &claimed.Items[i]
		got, err = worker.call(t.Context(), http.MethodPost, "/v1/work/"+item.WorkID+":complete",
			fmt.Sprintf(`{"owner":"w","expected_rev":%d,"request_id":"c"}`, item.Rev))
		if done++; err == nil && got.status != http.StatusOK {
			t.Errorf("complete: %d %s", got.status, got.body)
		}
	}
	if err != nil {
		t.Errorf("work: %v", err)
	}
	return done
}

// openSockets returns the number of sockets of the process on Linux, and 0 elsewhere.
func openSockets(t *testing.T, pid int) (n int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}
