package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/cli"
)

// protocolsCommand runs lucius protocols with an environment.
func protocolsCommand(t *testing.T, env map[string]string, args ...string) (stdout string, err error) {
	t.Helper()
	out := &output{}
	p := &program{Env: cli.Env{Stdout: out, Stderr: &output{}, Environment: entries(env)}}
	err = p.run(t.Context(), append([]string{"protocols"}, args...))
	return out.String(), err
}

// refused are the folders of protocol files with known mistakes.
const refused = "../../pkg/commands/testdata/refused/"

// complaints returns the expected messages about one of them.
func complaints(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(refused, name, "want.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(text)) {
		lines.WriteString(refused + name + "/" + line)
	}
	return lines.String()
}

func TestProtocolsValidate(t *testing.T) {
	t.Parallel()
	one := t.TempDir()
	put(t, one, strings.NewReplacer("version: 1\n", "", "doc.ingest", "a, b").Replace(ingest("1", "read", "write")))
	const shipped = "doc_ingest_v1: version 1, takes doc.ingest, steps extract > embed > index\n"
	const own = "ingest: no version, takes a, b, steps read > write\n"
	for _, test := range []struct {
		name string
		env  map[string]string
		args []string
		want string
		ok   bool
	}{
		{"a folder", nil, []string{"../../protocols"}, shipped, true},
		{"a file", nil, []string{filepath.Join(one, "ingest.yaml")}, own, true},
		{"both, ordered by id", nil, []string{one, "../../protocols/doc_ingest.yaml"}, shipped + own, true},
		{"the folder of the server", map[string]string{"LUCIUS_PROTOCOLS_DIR": one}, nil, own, true},
		{"many faults in one file", nil, []string{refused + "values-out-of-range"}, complaints(t, "values-out-of-range"), false},
		{"faults in many files", nil, []string{refused + "cut-off"}, complaints(t, "cut-off"), false},
		{"good and bad", nil, []string{one, refused + "cut-off"}, complaints(t, "cut-off"), false},
		{"no such folder", nil, []string{"missing"}, "load protocols from missing: no such file or directory\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := protocolsCommand(t, test.env, append([]string{"validate"}, test.args...)...)
			if (err == nil) != test.ok {
				t.Errorf("answered %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProtocolsValidate_JSON(t *testing.T) {
	t.Parallel()
	type step = map[string]any
	good, err := protocolsCommand(t, nil, "validate", "-o", "json", "../../protocols")
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Valid     bool
		Protocols []map[string]any
		Problems  []map[string]any
	}
	if err := json.Unmarshal([]byte(good), &report); err != nil {
		t.Fatal(err)
	}
	if !report.Valid || len(report.Protocols) != 1 || report.Problems == nil {
		t.Fatalf("report: %s", good)
	}
	first := report.Protocols[0]
	if digest, ok := first["digest"].(string); !ok || len(digest) != 64 {
		t.Errorf("the digest is %v", first["digest"])
	}
	delete(first, "digest")
	want := map[string]any{
		"protocol_id": "doc_ingest_v1", "version": "1", "request_types": []any{"doc.ingest"}, "schema_versions": []any{"1"},
		"file": "doc_ingest.yaml", "payload_example": step{"language": "text"}, "steps": []any{
			step{"step_id": "extract", "step_type": "EXTRACT", "service": "extract"},
			step{"step_id": "embed", "step_type": "EMBED", "service": "embed"},
			step{"step_id": "index", "step_type": "INDEX", "service": "index"},
		},
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("protocol (-want +got):\n%s", diff)
	}

	// Flags may also follow the arguments.
	bad, err := protocolsCommand(t, nil, "validate", refused+"one-bad-file-among-good-ones", "missing", "-o", "json")
	if err == nil {
		t.Error("bad files are answered without an error")
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(bad), &got); err != nil {
		t.Fatal(err)
	}
	dir := refused + "one-bad-file-among-good-ones/"
	wantBad := map[string]any{"valid": false, "protocols": []any{}, "problems": []any{
		map[string]any{"message": "load protocols from missing: no such file or directory"},
		map[string]any{"file": dir + "b.yaml", "line": 6.0, "message": "steps[0].service must be a single value"},
		map[string]any{"file": dir + "c.json", "line": 4.0, "message": "steps must hold at least one step"},
	}}
	if diff := cmp.Diff(wantBad, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestProtocols_RefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{[]string{"invalidate"}, nil, "did you mean validate?"},
		{[]string{"validate", "-o", "xml"}, nil, "--output"},
		{[]string{"validate", "--loud"}, nil, "-loud"},
		{[]string{"validate"}, map[string]string{"LUCIUS_PROTOCOLS_DIR": ""}, "LUCIUS_PROTOCOLS_DIR"},
	} {
		out, err := protocolsCommand(t, test.env, test.args...)
		if err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
			t.Errorf("%v answered %v and %q, want a word of %s", test.args, err, out, test.want)
		}
	}
}
