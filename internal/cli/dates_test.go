package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
)

// parkedJob returns a job that waits for its date.
func parkedJob() api.Job {
	job := waitingJob(api.JobStateQueued, api.Waiting{Reason: api.WaitingReasonScheduled})
	job.NotBefore, job.NotAfter = at(-2*time.Hour), at(-26*time.Hour)
	return job
}

func TestSubmit_Dates(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	const command = `{"request_type":"doc.ingest","doc_id":"1"}`
	for i, test := range []struct{ flags, want string }{
		{"--at 2026-01-28T03:00:00+01:00", `"not_before":"2026-01-28T02:00:00.000Z"}`},
		{"--in 90m", `"delay_seconds":5400}`},
		{"--in 2d --expires 3d", `"delay_seconds":172800,"not_after":"2026-01-30T12:00:00.000Z"}`},
		{"--in 1500ms", `"delay_seconds":2}`},
		{"--expires 2026-01-28T06:00:00Z", `"not_after":"2026-01-28T06:00:00.000Z"}`},
	} {
		l.Stdin = strings.NewReader(command)
		out, err := l.run(t, append([]string{"submit", "-"}, strings.Fields(test.flags)...)...)
		if body := s.bodies[i]; err != nil || !strings.HasSuffix(body, test.want) || len(s.jobs) != 1 {
			t.Errorf("%s: %v, %s, sent %s", test.flags, err, out, body)
		}
	}
	for flags, want := range map[string]string{
		"--at 2h":                 `--at is "2h", it must be a time`,
		"--in soon":               `--in is "soon", it must be a duration`,
		"--in -1h":                `--in is "-1h"`,
		"--expires -1h":           `--expires is "-1h", it must be a time`,
		"--at 2026-01-28 --in 1h": "give --at or --in, not both",
	} {
		l.Stdin = strings.NewReader(command)
		_, err := l.run(t, append([]string{"submit", "-"}, strings.Fields(flags)...)...)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
	for text, want := range map[string]string{
		`{"delay_seconds":0}`:                   "line 2: the command says when it begins: leave out --at and --in",
		`{"not_before":"2026-01-28T02:00:00Z"}`: "line 2: the command says when it begins",
		`{"not_after":"2026-01-28T02:00:00Z"}`:  "line 2: the command says when it expires: leave out --expires",
		`{"not_after":1,"not_after":}`:          "line 2: the input is not JSON",
	} {
		l.Stdin = strings.NewReader(command + "\n" + text)
		_, err := l.run(t, "submit", "-", "--in", "1h", "--expires", "2h")
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestJobsReschedule(t *testing.T) {
	t.Parallel()
	var body string
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		musttest.NoError(t, err)
		body = r.URL.Path + " " + string(text)
		fmt.Fprint(w, encode(t, parkedJob()))
	}))
	for flags, want := range map[string]string{
		"--now":                           `{"delay_seconds":0}`,
		"--in 2h --reason late":           `{"delay_seconds":7200,"reason":"late"}`,
		"--at 2026-01-28 --never-expires": `{"never_expires":true,"not_before":"2026-01-28T`,
		"--now --expires 1d":              `{"delay_seconds":0,"not_after":"2026-01-28T12:00:00.000Z"}`,
	} {
		out, err := l.run(t, append([]string{"jobs", "reschedule", jobID}, strings.Fields(flags)...)...)
		if err != nil || !strings.HasPrefix(body, "/v1/jobs/"+jobID+":reschedule "+want) {
			t.Errorf("%s: %v, sent %s", flags, err, body)
		}
		const said = "Rescheduled job " + jobID + ": it is QUEUED\nbegins   2026-01-27T14:00:00Z, in 2h\nexpires  2026-01-28T14:00:00Z, in 26h\n"
		if out != said {
			t.Errorf("%s: %s", flags, out)
		}
	}
	for flags, want := range map[string]string{
		"":                             "say when",
		"--reason late":                "say when",
		"--now --in 1h":                "give --now, --at or --in, not two of them",
		"--expires 1h --never-expires": "give --expires or --never-expires, not both",
		"--in soon":                    `--in is "soon"`,
	} {
		_, err := l.run(t, append([]string{"jobs", "reschedule", jobID}, strings.Fields(flags)...)...)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v", flags, err)
		}
	}
	forPrograms(t, l, parkedJob(), "jobs", "reschedule", jobID, "--now")
}

func TestJobs_ShowDates(t *testing.T) {
	t.Parallel()
	eternal := parkedJob()
	eternal.NotAfter = api.Time{}
	l := newLine(t, answers(t, map[string]any{
		"GET /v1/jobs/" + jobID: parkedJob(), "GET /v1/jobs": api.JobPage{Jobs: []api.Job{parkedJob(), eternal}},
	}))
	golden(t, "jobs-dates.txt", l.must(t, "jobs", "list", "--waiting", "scheduled")+"\n"+l.must(t, "jobs", "get", jobID))
}
