//go:build sdk

package conformance_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/waittest"
)

// logLines are the lines of a worker that meets a few tasks and an outage, without what
// differs from run to run.
var logLines = []string{
	`INFO worker started owner services=conformance steps=CONFORM server=PROXY parallel=1`,
	`INFO task ended job_id step_id=conform step_type=CONFORM attempt=1 duration outcome=succeeded`,
	`INFO task ended job_id step_id=conform step_type=CONFORM attempt=1 duration outcome=failed error=CONFORMANCE_FINAL: told to fail`,
	`INFO task ended job_id step_id=conform step_type=CONFORM attempt=1 duration outcome=retry error=CONFORMANCE_RETRY: told to retry`,
	`INFO task ended job_id step_id=conform step_type=CONFORM attempt=2 duration outcome=succeeded`,
	`WARN result refused job_id step_id=conform step_type=CONFORM attempt=1 error=` + tooLong,
	`INFO task ended job_id step_id=conform step_type=CONFORM attempt=1 duration outcome=failed error=result_refused: ` + tooLong,
	`INFO task ended job_id step_id=conform step_type=CONFORM attempt=1 duration outcome=cancelled error=cancelled: …`,
	`WARN server unreachable server=PROXY error=…`,
	`INFO server reachable duration server=PROXY`,
	`INFO task ended job_id step_id=conform step_type=CONFORM attempt=1 duration outcome=succeeded`,
}

// tooLong is the answer to a result whose uri is too long.
const tooLong = "the server answered 413 too_large: /result_ref/uri must not be longer than 2048 characters.; " +
	"/result_ref/uri: must not be longer than 2048 characters"

// TestLog expects the same log of the workers of all SDKs.
func TestLog(t *testing.T) {
	t.Parallel()
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			t.Parallel()
			sdk.present(t)
			site := newSite(t, "--lease-duration", "30s") // A heartbeat without an answer in a third of it is logged.
			b := &bench{site: site, worker: startWorker(t, sdk, site.proxy.url, 60, "CONFORMANCE_PARALLEL=1")}
			for _, do := range []string{"succeed", "final", "retry_once", "refused"} {
				b.wait(b.add(what{"do": do}))
			}
			job := b.add(what{"do": "sleep", "seconds": 600})
			cancel(t, b, job)
			b.wait(job)
			b.away(t)
			b.wait(b.add(what{"do": "succeed"}))
			b.worker.terminate()
			b.worker.exits(t)
			if diff := cmp.Diff(logLines, b.worker.logged(t, b.proxy.url)); diff != "" {
				t.Errorf("the log (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLog_OfAWrongWorker expects the same of all SDKs: a worker for a service that no protocol
// has hears of it once, and one whose token is wrong ends with the answer.
func TestLog_OfAWrongWorker(t *testing.T) {
	t.Parallel()
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			t.Parallel()
			sdk.present(t)
			site := newSite(t)
			wrong := startWorker(t, sdk, site.proxy.url, 60, "CONFORMANCE_SERVICE=konformance")
			waittest.Until(t, "the first claim is answered", func() bool { return len(site.proxy.seen(claims)) > 1 })
			wrong.terminate()
			wrong.exits(t)
			if diff := cmp.Diff([]string{
				`INFO worker started owner services=konformance steps=CONFORM server=PROXY parallel=24`,
				`WARN claim warning code=service_unknown warning=no protocol has service konformance (services: conformance, throttled)`,
			}, wrong.logged(t, site.proxy.url)); diff != "" {
				t.Errorf("the log (-want +got):\n%s", diff)
			}
			site.proxy.token.Store("another token")
			denied := startWorker(t, sdk, site.proxy.url, 60)
			waittest.Receive(t, "the worker ends", denied.ended)
			said := denied.said.String()
			if denied.cmd.ProcessState.Success() || !strings.Contains(said, `"worker started"`) ||
				!strings.Contains(said, "the server answered 401 unauthenticated: The token has expired.") {
				t.Errorf("%s: %s", denied.cmd.ProcessState, said)
			}
		})
	}
}

// away has the server away until the worker has noticed it: the worker waits for work.
func (b *bench) away(t *testing.T) {
	t.Helper()
	waiting := 0
	waittest.Until(t, "the worker waits for work", func() bool {
		calls := b.proxy.seen(anyCall)
		waiting = len(calls)
		return claims(&calls[waiting-1]) && calls[waiting-1].status == 0
	})
	b.kill()
	waittest.Until(t, "the claim is repeated", func() bool { return len(b.proxy.seen(anyCall)) > waiting+1 })
	b.start()
}

func anyCall(*call) bool { return true }

// logged returns the lines that the worker logged, once it has ended.
func (w *worker) logged(t *testing.T, url string) (lines []string) {
	t.Helper()
	for text := range strings.Lines(w.said.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatalf("the worker logged %q: %v", text, err)
		}
		if fields["msg"] == "last claim unanswered" { // On a machine that pauses while the worker stops.
			continue
		}
		line := fmt.Sprint(strings.TrimSuffix(fmt.Sprint(fields["level"]), "ING"), " ", fields["msg"])
		for _, name := range logFields {
			value, has := fields[name]
			if !has {
				continue
			}
			switch delete(fields, name); {
			case name == "duration" && regexp.MustCompile(`^(\d\.\d{3}|\d+\.\d)s$`).MatchString(fmt.Sprint(value)),
				name == "owner" || name == "job_id":
				line += " " + name
			default:
				line += fmt.Sprintf(" %s=%v", name, value)
			}
		}
		for _, known := range []string{"time", "level", "msg"} {
			delete(fields, known)
		}
		if len(fields) > 0 {
			t.Errorf("unknown fields: %s", text)
		}
		lines = append(lines, shorten(strings.ReplaceAll(line, url, "PROXY")))
	}
	return lines
}

// logFields are all fields, in the order of the table.
var logFields = []string{
	"owner", "services", "steps", "job_id", "step_id", "step_type", "attempt", "duration", "outcome", "server", "parallel", "code", "warning", "error",
}

// shorten cuts the reasons that differ from language to language.
func shorten(line string) string {
	for _, start := range []string{"unreachable server=PROXY error=", "error=cancelled: "} {
		if before, _, found := strings.Cut(line, start); found {
			return before + start + "…"
		}
	}
	return line
}
