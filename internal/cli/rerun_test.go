package cli_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
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
		{nil, `{"from":"failed","protocol":"kept"}`},
		{[]string{"--patch", `{"language":null}`, "--newest", "--no-callbacks"}, `{"callbacks":"none","from":"failed","newest":true,"payload_patch":{"language":null},"protocol":"kept"}`},
		{[]string{"--patch-file", file}, `{"from":"failed","payload_patch":{"language":"fr"},"protocol":"kept"}`},
		{
			[]string{"--payload-file", file, "--from-step", "embed", "--protocol", "current"},
			`{"from_step":"embed","payload":{"language":"fr"},"protocol":"current"}`,
		},
		{
			[]string{"--input-uri", "s3://b/a&b", "--output-uri", "s3://b/o", "--tag", "run=a=b", "--reason", "r"},
			`{"from":"failed","input_ref":{"uri":"s3://b/a\u0026b"},"output_ref":{"uri":"s3://b/o"},"protocol":"kept","reason":"r","tags":{"run":"a=b"}}`,
		},
		{
			[]string{"--resolve", "ocr=s3://b/x?v=1", "--resolve", "split=s3://b/y"},
			`{"from":"failed","protocol":"kept","resolve":[{"step_id":"ocr","output_ref":{"uri":"s3://b/x?v=1"}},{"step_id":"split","output_ref":{"uri":"s3://b/y"}}]}`,
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
