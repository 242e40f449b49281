package cli_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
)

func TestJobsRerun_SendsTheCorrections(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(file, []byte(`{"language": "fr"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string // what is sent, empty for an error of usage
	}{
		{nil, `{}`},
		{[]string{"--patch", `{"language":null}`, "--newest", "--no-callbacks"}, `{"callbacks":"none","newest":true,"payload_patch":{"language":null}}`},
		{[]string{"--patch-file", file}, `{"payload_patch":{"language":"fr"}}`},
		{
			[]string{"--payload-file", file, "--from-step", "embed", "--protocol", "current"},
			`{"from_step":"embed","payload":{"language":"fr"},"protocol":"current"}`,
		},
		{
			[]string{"--input-uri", "s3://b/a&b", "--output-uri", "s3://b/o", "--tag", "run=a=b", "--reason", "r"},
			`{"input_ref":{"uri":"s3://b/a\u0026b"},"output_ref":{"uri":"s3://b/o"},"reason":"r","tags":{"run":"a=b"}}`,
		},
		{
			[]string{"--resolve", "ocr=s3://b/x?v=1", "--resolve", "split=s3://b/y"},
			`{"resolve":[{"step_id":"ocr","output_ref":{"uri":"s3://b/x?v=1"}},{"step_id":"split","output_ref":{"uri":"s3://b/y"}}]}`,
		},
		{[]string{"--from", "start", "--from-step", "ocr"}, ""},
		{[]string{"--patch", "{}", "--patch-file", file}, ""},
		{[]string{"--patch", "[]"}, ""},
		{[]string{"--patch", "{"}, ""},
		{[]string{"--resolve", "ocr"}, ""},
		{[]string{"--protocol", "old"}, ""},
		{[]string{"--tag", "Run=1"}, ""},
	} {
		sent := ""
		l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // What is missing fails the comparison.
			sent = string(body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write([]byte(`{"jobId":"new","state":"DISPATCHING","replayed":false,"correlation_id":"c"}`))
		}))
		_, err := l.run(t, append([]string{"jobs", "rerun", jobID}, test.args...)...)
		if test.want == "" {
			if cli.ExitCode(err) != cli.ExitUsage || sent != "" {
				t.Errorf("%v: %v, sent %s", test.args, err, sent)
			}
			continue
		}
		if err != nil {
			t.Errorf("%v: %v", test.args, err)
		}
		var got, want api.RerunRequest
		if err := errors.Join(json.Unmarshal([]byte(sent), &got), json.Unmarshal([]byte(test.want), &want)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: sent %s, want %s, %v", test.args, sent, test.want, err)
		}
	}
}

func TestJobsRerun_ShowsWhatItWouldDo(t *testing.T) {
	t.Parallel()
	of := func(preview api.RerunPreview) string {
		server := newScripted(t, map[string][]any{"POST /v1/jobs/" + jobID + ":rerun": {preview}})
		out := newLine(t, server.url).must(t, "jobs", "rerun", jobID, "--dry-run")
		server.wantAsked(t, "POST /v1/jobs/"+jobID+`:rerun {"dry_run":true}`)
		return out
	}
	golden(t, "jobs-rerun-dry-run.txt", of(api.RerunPreview{
		DryRun: true, JobID: jobID, ExistingJobID: "another", ProtocolID: "doc_ingest_v1", ProtocolVersion: "3",
		Steps: []api.PlannedStep{
			{StepID: "ocr", StepType: "OCR", Service: "ocr", Outcome: api.StepOutcomeResolved}, {StepID: "embed", StepType: "EMBED", Service: "embed"},
		},
		Changes: []api.CommandChange{{Pointer: "/payload/text", Before: json.RawMessage(`"` + strings.Repeat("x", 100) + `"`)}},
	})+of(api.RerunPreview{DryRun: true, JobID: jobID, Live: true}))
}
