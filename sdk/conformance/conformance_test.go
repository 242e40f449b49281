//go:build sdk

package conformance_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/waittest"
)

// sdk is an SDK with its conformance worker.
type sdk struct {
	name, dir string
	// check is a command that fails if the SDK's language is missing or too old.
	check []string
	// build makes the worker, if it needs that.
	build []string
	built sync.Once
	// command runs the worker.
	command []string
	// client tells the story of the client.
	client []string
}

var sdks = []*sdk{
	{
		name: "go", dir: "../go",
		check:   []string{"go", "version"},
		build:   []string{"go", "build", "-o", "../../bin/conformance-go", "./internal/conformance"},
		command: []string{"../../bin/conformance-go"},
		client:  []string{"../../bin/conformance-go", "client"},
	},
	{
		name: "python", dir: "../python",
		check:   []string{"python3", "-c", "import sys; assert sys.version_info >= (3, 9), sys.version"},
		command: []string{"python3", "conformance_worker.py"},
		client:  []string{"python3", "conformance_client.py"},
	},
	{
		name: "typescript", dir: "../typescript",
		check:   []string{"node", "-e", "if (process.versions.node.split('.')[0] < 20) throw process.version"},
		build:   []string{"./with-tools", "tsc", "-p", "."},
		command: []string{"node", "dist/conformance/worker.js"},
		client:  []string{"node", "dist/conformance/client.js"},
	},
}

// bench is one worker on one server.
type bench struct {
	*site
	worker *worker
	// jobs are all that were submitted.
	jobs []string
}

// TestConformance runs the scenarios of the README on each SDK.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			t.Parallel()
			sdk.present(t)
			site := newSite(t)
			b := &bench{site: site, worker: startWorker(t, sdk, site.proxy.url, 60)}
			throttled := startWorker(t, sdk, site.proxy.url, 60, "CONFORMANCE_SERVICE=throttled")
			b.tasks(t, scenarios)
			throttled.terminate()
			throttled.exits(t)
			b.lostClaim(t)
			b.rotate(t)
			b.together(t)
			b.crash(t)
			b.outage(t)
			b.slowNetwork(t)
			b.anyStep(t, sdk)
			b.death(t, sdk)
			b.drain(t)
			b.stop(t, sdk)
			b.oracle(t)
			b.audit()
		})
	}
}

// present fails if what the SDK needs is not on this machine.
func (s *sdk) present(t *testing.T) {
	t.Helper()
	if out, err := exec.Command(s.check[0], s.check[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("the SDK for %s is not tested: %s: %v\n%s", s.name, strings.Join(s.check, " "), err, out)
	}
	s.built.Do(func() {
		if s.build == nil {
			return
		}
		cmd := exec.Command(s.build[0], s.build[1:]...)
		cmd.Dir = s.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(s.build, " "), err, out)
		}
	})
}

// add submits a job for the worker.
func (b *bench) add(payload what) string { b.t.Helper(); return b.addOf("sdk.conform", payload) }

// addOf submits a job of a request type.
func (b *bench) addOf(requestType string, payload what) string {
	b.t.Helper()
	job := b.submit(requestType, payload)
	b.jobs = append(b.jobs, job)
	return job
}

// tasks runs scenarios of one job at once.
func (b *bench) tasks(t *testing.T, scenarios []scenario) {
	t.Helper()
	jobs := make([]string, len(scenarios))
	for i, s := range scenarios {
		for _, f := range s.faults {
			f.scenario = s.name
			b.proxy.inject(&f)
		}
		payload := what{"scenario": s.name}
		maps.Copy(payload, s.payload)
		jobs[i] = b.addOf(cmp.Or(s.requestType, "sdk.conform"), payload)
	}
	var all sync.WaitGroup
	for i, s := range scenarios { // All at once: parallel subtests would wait for processors.
		all.Go(func() {
			t.Run(s.name, func(t *testing.T) {
				b.task(t, &s, jobs[i])
			})
		})
	}
	all.Wait()
}

// task plays one scenario.
func (b *bench) task(t *testing.T, s *scenario, job string) {
	t.Helper()
	at := *b.site
	at.t = t
	b = &bench{site: &at, worker: b.worker}
	if s.during != nil {
		s.during(t, b, job)
	}
	j := b.wait(job)
	if got := j.Steps[0].AttemptNo; j.State != s.state || j.ErrorCode != s.code || got != s.attempt {
		t.Errorf("the job ended %s %q in attempt %d, not %s %q in %d: %s",
			j.State, j.ErrorCode, got, s.state, s.code, s.attempt, j.ErrorMessage)
	}
	if s.judge != nil {
		s.judge(t, b, j)
	}
}

// lostClaim breaks the connection of a claim that got a task: its repetition gets it.
func (b *bench) lostClaim(t *testing.T) {
	t.Helper()
	b.proxy.inject(&fault{verb: "claim", times: 1, dropAnswer: true})
	j := b.wait(b.add(what{"do": "succeed"}))
	if j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
		t.Errorf("after a lost claim the job ended %s in attempt %d", j.State, j.Steps[0].AttemptNo)
	}
	sent := map[string]int{}
	for _, c := range b.proxy.seen(claims) { // The lost one may have waited for long.
		if sent[c.body.RequestID]++; c.items > 0 && sent[c.body.RequestID] == 2 {
			return
		}
	}
	t.Errorf("no claim was repeated with the same request id: %v", sent)
}

func claims(c *call) bool { return c.verb == "claim" }

// rotate replaces the token while the worker has a task: it keeps the task, reads the new
// token, and goes on claiming.
func (b *bench) rotate(t *testing.T) {
	t.Helper()
	long := b.add(what{"do": "sleep", "seconds": 3})
	b.worker.started(t, long)
	b.proxy.token.Store("the second token")
	short := b.add(what{"do": "succeed"}) // The claim that waits gets it, and the next one is refused.
	waittest.Until(t, "a claim is refused", func() bool {
		return len(b.proxy.seen(func(c *call) bool { return claims(c) && c.status == http.StatusUnauthorized })) > 0
	})
	b.worker.writeToken(t, "the second token")
	for _, id := range []string{long, short, b.add(what{"do": "succeed"})} {
		if j := b.wait(id); j.State != "SUCCEEDED" {
			t.Errorf("after a new token the job ended %s %s", j.State, j.ErrorCode)
		}
	}
	b.proxy.token.Store("")
}

// together has many tasks end at once in a slow network, so that they share requests. One
// of them is refused, one is at another rev, and some requests have no answer: each task
// ends as if it were alone.
func (b *bench) together(t *testing.T) {
	t.Helper()
	const group = "together"
	b.proxy.delay.Store(int64(100 * time.Millisecond))
	defer b.proxy.delay.Store(0)
	b.proxy.inject(&fault{verb: "complete", scenario: group, shared: true, times: 3, dropAnswer: true})
	b.proxy.inject(&fault{verb: "complete", scenario: group, shared: true, times: 1, refuse: true})
	b.proxy.inject(&fault{verb: "complete", scenario: group, shared: true, times: 1, raiseRev: true})
	payload := what{"scenario": group, "do": "sleep", "seconds": 1} // Before the first heartbeat.
	var jobs []string
	for range 20 {
		jobs = append(jobs, b.add(payload))
	}
	payload["do"] = "refused"
	refused := b.add(payload)
	for _, job := range jobs {
		if j := b.wait(job); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
			t.Errorf("of tasks that ended together, one ended its job %s %q in attempt %d", j.State, j.ErrorCode, j.Steps[0].AttemptNo)
		}
	}
	if j := b.wait(refused); j.State != "FAILED_FINAL" || j.ErrorCode != "result_refused" {
		t.Errorf("of tasks that ended together, the refused one ended its job %s %q", j.State, j.ErrorCode)
	}
	if len(b.proxy.seen(func(c *call) bool { return c.scenario == group && c.together > 1 })) == 0 {
		t.Error("no completions shared a request")
	}
}

// crash kills the server while it has tasks, and starts it again on its folder. A proxy answers
// some claims in its place.
func (b *bench) crash(t *testing.T) {
	t.Helper()
	jobs := make([]string, 6)
	for i := range jobs {
		jobs[i] = b.add(what{"do": "sleep", "seconds": 1})
	}
	b.worker.started(t, jobs[0])
	b.proxy.inject(&fault{verb: "claim", times: 2, stray: true})
	b.kill()
	time.Sleep(300 * time.Millisecond) // Calls fail until the server is back.
	b.start()
	for _, job := range jobs {
		if j := b.wait(job); j.State != "SUCCEEDED" {
			t.Errorf("after a crash of the server the job ended %s %s", j.State, j.ErrorCode)
		}
	}
}

// outage has the server away for longer than the leases. The handlers go on, and those that
// have ended report their results once it is back.
//
// A server that is back gives a third of a lease. A machine that pauses in it proves nothing.
func (b *bench) outage(t *testing.T) {
	t.Helper()
	var faults []string
	for tries := 0; tries == 0 || len(faults) > 0 && tries < 3; tries++ {
		faults = b.outlasts(t)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
}

// outlasts is one outage. It returns what was wrong.
func (b *bench) outlasts(t *testing.T) (faults []string) {
	t.Helper()
	jobs := []string{b.add(what{"do": "sleep", "seconds": 2 * lease.Seconds()}), b.add(what{"do": "sleep", "seconds": 2})}
	for _, job := range jobs {
		b.worker.started(t, job)
	}
	b.kill()
	time.Sleep(lease + lease/2)
	b.start()
	for _, job := range jobs {
		j := b.wait(job)
		if j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
			faults = append(faults, fmt.Sprintf("after an outage the job ended %s %s in attempt %d", j.State, j.ErrorCode, j.Steps[0].AttemptNo))
		}
		for _, l := range b.worker.all() {
			if l.JobID == job && l.Event == "cancelled" {
				faults = append(faults, fmt.Sprintf("in the outage the worker wrote %+v", l))
			}
		}
	}
	return faults
}

// death kills a worker. The lease of its step is long, but its claim asked for a short one,
// after which another worker gets the step; heartbeats keep it for longer.
func (b *bench) death(t *testing.T, sdk *sdk) {
	t.Helper()
	brief := waittest.Scale(6 * time.Second).Truncate(time.Second).Seconds()
	settings := []string{"CONFORMANCE_ANY_STEP=yes", fmt.Sprint("CONFORMANCE_LEASE_SECONDS=", brief)}
	mortal := startWorker(t, sdk, b.proxy.url, 60, settings...)
	kept := b.addOf("sdk.long", what{"do": "sleep", "seconds": 2*brief + 1})
	if j := b.wait(kept); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
		t.Errorf("a step that is longer than its lease ended its job %s in attempt %d", j.State, j.Steps[0].AttemptNo)
	}
	job := b.addOf("sdk.long", what{"do": "sleep", "seconds": 600})
	mortal.started(t, job)
	if err := mortal.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-mortal.ended
	heir := startWorker(t, sdk, b.proxy.url, 60, settings...)
	heir.await(t, line{Event: "started", JobID: job, Attempt: 2})
	b.call("POST", "/v1/jobs/"+job+":cancel", what{}, nil)
	b.wait(job)
	heir.terminate()
	heir.exits(t)
	for _, c := range b.proxy.seen(claims) {
		if c.body.Lease != brief && c.body.Lease != 90 {
			t.Errorf("a claim asked for a lease of %gs", c.body.Lease)
		}
	}
}

// slowNetwork delays every request and answer.
func (b *bench) slowNetwork(t *testing.T) {
	t.Helper()
	b.proxy.delay.Store(int64(300 * time.Millisecond))
	defer b.proxy.delay.Store(0)
	var jobs []string
	for range 10 {
		jobs = append(jobs, b.add(what{"do": "sleep", "seconds": 2}))
	}
	for _, job := range jobs {
		if j := b.wait(job); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
			t.Errorf("in a slow network the job ended %s in attempt %d", j.State, j.Steps[0].AttemptNo)
		}
	}
}

// anyStep expects the worker to leave a step whose type it has no handler for to another one,
// which has a handler for any.
func (b *bench) anyStep(t *testing.T, sdk *sdk) {
	t.Helper()
	other := b.addOf("sdk.other", what{"do": "succeed"})
	b.wait(b.add(what{"do": "succeed"})) // The worker has claimed since.
	if j := b.job(other); j.Steps[0].Owner != "" {
		t.Errorf("a worker took a step of another type: %+v", j)
	}
	more := startWorker(t, sdk, b.proxy.url, 60, "CONFORMANCE_ANY_STEP=yes")
	if j := b.wait(other); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
		t.Errorf("a step of any type ended its job %s %q in attempt %d", j.State, j.ErrorCode, j.Steps[0].AttemptNo)
	}
	more.terminate()
	more.exits(t)
}

// drain stops the worker while it has a task: it finishes it, and takes no other.
func (b *bench) drain(t *testing.T) {
	t.Helper()
	job := b.add(what{"do": "sleep", "seconds": 3, "deaf": true})
	b.worker.started(t, job)
	b.worker.terminate()
	b.worker.exits(t)
	if j := b.job(job); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
		t.Errorf("the task of a worker that stopped ended its job %s in attempt %d", j.State, j.Steps[0].AttemptNo)
	}
	held := b.add(what{"do": "succeed"})
	if j := b.job(held); j.Steps[0].Owner != "" {
		t.Errorf("a claim of the worker that stopped lives on: it took %+v", j)
	}
	b.call("POST", "/v1/jobs/"+held+":cancel", what{}, nil)
}

// stop stops a worker whose task outlasts the grace.
func (b *bench) stop(t *testing.T, sdk *sdk) {
	t.Helper()
	var reports []call
	// A machine that pauses for the last two seconds of the worker leaves no time for its report.
	for tries := 0; len(reports) == 0 && tries < 5; tries++ {
		// A long lease has no heartbeat by then: one that is cut off raises the rev.
		job := b.addOf("sdk.long", what{"do": "sleep", "seconds": 600})
		short := startWorker(t, sdk, b.proxy.url, 1, "CONFORMANCE_ANY_STEP=yes")
		short.started(t, job)
		short.terminate()
		short.exits(t)
		if want := (line{Event: "cancelled", JobID: job, Attempt: 1, Cause: "stopping"}); !short.wrote(want) {
			t.Errorf("the worker did not write %+v", want)
		}
		reports = b.proxy.seen(func(c *call) bool { return c.jobID == job && c.verb == "fail" })
		b.call("POST", "/v1/jobs/"+job+":cancel", what{}, nil)
		b.wait(job)
	}
	if len(reports) != 1 || reports[0].body.Error.Code != "worker_stopped" || !reports[0].body.Retryable || reports[0].body.RetryAfter != 1 {
		t.Errorf("the report of a task that outlasted the grace: %+v", reports)
	}
}

// oracle holds all jobs against what the proxy saw: each report that was answered is in
// the history, each success once, and the end is what the last report said.
func (b *bench) oracle(t *testing.T) {
	t.Helper()
	for _, id := range b.jobs {
		j := b.wait(id)
		applied := map[string]bool{} // The request ids of completions that the server took.
		for _, c := range b.proxy.seen(func(c *call) bool { return c.jobID == id && c.verb == "complete" }) {
			if c.status == http.StatusOK {
				applied[c.body.RequestID] = true
			}
		}
		succeeded := 0
		for _, e := range b.history(id) {
			if e.Type == "step.succeeded" {
				succeeded++
				if want := fmt.Sprintf("conformance://%s/%d", id, e.AttemptNo); j.FinalOutput.URI != want {
					t.Errorf("job %s has the output %q, and attempt %d succeeded", id, j.FinalOutput.URI, e.AttemptNo)
				}
			}
		}
		want := 0
		if j.State == "SUCCEEDED" {
			want = 1
		}
		if succeeded != want || len(applied) > want {
			t.Errorf("job %s is %s: %d successes in its history, completions that were taken: %v", id, j.State, succeeded, applied)
		}
	}
}
