package main

import (
	"encoding/json"
	"go/parser"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSamples_CallWithTheExamples(t *testing.T) {
	t.Parallel()
	got := samples("POST", "/v1/jobs/{jobId}:cancel", []field{{Name: "jobId", In: "path", Example: "0197"}},
		&bodyView{Media: "application/json", Example: "{\n  \"reason\": \"it's late\"\n}"})
	want := []sample{
		{"curl", `curl http://127.0.0.1:8080/v1/jobs/0197:cancel -H "Authorization: Bearer $LUCIUS_TOKEN" \
  -H 'Content-Type: application/json' -d '{
  "reason": "it'\''s late"
}'`},
		{"Go", "request, err := http.NewRequestWithContext(ctx, \"POST\", \"http://127.0.0.1:8080/v1/jobs/0197:cancel\", " +
			"strings.NewReader(`{\n  \"reason\": \"it's late\"\n}`))\n" + `if err != nil {
	return err
}
request.Header.Set("Content-Type", "application/json")
request.Header.Set("Authorization", "Bearer "+os.Getenv("LUCIUS_TOKEN"))
response, err := http.DefaultClient.Do(request)`},
		{"Python", `import os, urllib.request

request = urllib.request.Request("http://127.0.0.1:8080/v1/jobs/0197:cancel", method="POST", data=r"""{
  "reason": "it's late"
}""".encode(),
    headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["LUCIUS_TOKEN"]})
with urllib.request.urlopen(request) as response:
    print(response.read().decode())`},
		{"TypeScript", `const response = await fetch("http://127.0.0.1:8080/v1/jobs/0197:cancel", {
  method: "POST",
  headers: { "Content-Type": "application/json", Authorization: ` + "`Bearer ${process.env.LUCIUS_TOKEN}`" + ` },
  body: JSON.stringify({
    "reason": "it's late"
  }),
});
console.log(response.status, await response.text());`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

// The samples must contain a complete URL, valid JSON and valid Go.
func TestSamples_OfEachOperation(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(contract)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := view(parsed)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range shown.Groups {
		for i := range group.Operations {
			o := &group.Operations[i]
			if len(o.Samples) != 4 {
				t.Fatalf("%s has %d samples, not 4", o.ID, len(o.Samples))
			}
			for _, s := range o.Samples {
				if url := s.Code[strings.Index(s.Code, "http://"):]; strings.Contains(url[:strings.IndexAny(url, " \"")+1], "{") {
					t.Errorf("%s in %s has a parameter without a value: %s", o.ID, s.Language, s.Code)
				}
			}
			if o.Request != nil && !json.Valid([]byte(o.Request.Example)) {
				t.Errorf("the body of %s is not JSON: %s", o.ID, o.Request.Example)
			}
			if _, err := parser.ParseExpr("func() error {\n" + o.Samples[1].Code + "\n}"); err != nil {
				t.Errorf("%s in Go: %v\n%s", o.ID, err, o.Samples[1].Code)
			}
		}
	}
}
