package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// checked is a request body that checks itself.
type checked interface {
	Check() []apierror.Violation
}

// requests are the request bodies that are checked by hand, by schema, each
// with a valid specimen that sets every field.
var requests = map[string]struct {
	fresh    func() checked
	specimen string
}{
	"AckCallback": {func() checked { return new(api.AckCallback) }, `{
		"jobId":"j","stepId":"s","tenant_id":"t","attempt_no":1,"lease_id":"l",
		"timestamp":"2026-01-27T10:02:00Z","correlation_id":"c","type":"ACK","lease_seconds":1}`},
	"HeartbeatCallback": {func() checked { return new(api.HeartbeatCallback) }, `{
		"jobId":"j","stepId":"s","tenant_id":"t","attempt_no":1,"lease_id":"l",
		"timestamp":"2026-01-27T10:02:00Z","correlation_id":"c","type":"HEARTBEAT",
		"progress":{"fraction":0.5,"message":"m"}}`},
	"ResultCallback": {func() checked { return new(api.ResultCallback) }, `{
		"jobId":"j","stepId":"s","tenant_id":"t","attempt_no":1,"lease_id":"l",
		"timestamp":"2026-01-27T10:02:00Z","correlation_id":"c","type":"RESULT","status":"FAILED_RETRY",
		"error":{"code":"c","message":"m"},"output_ref":{"uri":"u"},"result_ref":{"uri":"u"},"retry_after_seconds":1.5}`},
	"ClaimRequest": {func() checked { return new(api.ClaimRequest) }, `{
		"owner":"o","services":["a"],"step_types":["A"],"max":1,"wait_seconds":0.5,"lease_seconds":1,"start":true,
		"version":"1","host":"h","request_id":"r"}`},
	"WorkVerb": {func() checked { return new(api.WorkVerb) }, `{"owner":"o","expected_rev":1,"request_id":"r"}`},
	"WorkHeartbeat": {func() checked { return new(api.WorkHeartbeat) }, `{
		"owner":"o","expected_rev":1,"request_id":"r","progress":{"fraction":0.5,"message":"m"}}`},
	"WorkCompletion": {func() checked { return new(api.WorkCompletion) }, `{
		"owner":"o","expected_rev":1,"request_id":"r","output_ref":{"uri":"u"},"result_ref":{"uri":"u"}}`},
	"WorkFailure": {func() checked { return new(api.WorkFailure) }, `{
		"owner":"o","expected_rev":1,"request_id":"r","retryable":true,"error":{"code":"c","message":"m"},
		"retry_after_seconds":1}`},
	"ControlRequest":   {func() checked { return new(api.ControlRequest) }, `{"reason":"r"}`},
	"AdminWorkRequest": {func() checked { return new(api.AdminWorkRequest) }, `{"expected_rev":1,"request_id":"r","reason":"r"}`},
	"RerunRequest":     {func() checked { return new(api.RerunRequest) }, `{"from":"start","reason":"r"}`},
	"RetryRequest": {func() checked { return new(api.RetryRequest) }, `{
		"tenant_id":"t","doc_id":"d","tags":{"env":"prod"},"request_type":"r","service":"s","step_type":"s","error_code":"e","from":"failed","limit":1,
		"created_after":"2026-01-27T10:02:00Z","created_before":"2026-01-28T10:02:00Z","ended_after":"2026-01-27T10:02:00Z",
		"ended_before":"2026-01-28T10:02:00Z","rate_per_second":1.5,"reason":"r","all":true,"dry_run":true}`},
	"BulkRequest": {func() checked { return new(api.BulkRequest) }, `{
		"tenant_id":"t","doc_id":"d","tags":{"env":"prod"},"request_type":"r","state":"PAUSED","service":"s","step_type":"s","error_code":"e","limit":1,
		"created_after":"2026-01-27T10:02:00Z","created_before":"2026-01-28T10:02:00Z","rate_per_second":1.5,"reason":"r",
		"all":true,"dry_run":true}`},
	"PauseRequest":  {func() checked { return new(api.PauseRequest) }, `{"tenant_id":"t","reason":"r"}`},
	"MarkRequest":   {func() checked { return new(api.MarkRequest) }, `{"finding_id":"f","tenant_id":"t","state":"snoozed","note":"n","for_seconds":1.5}`},
	"ResumeRequest": {func() checked { return new(api.ResumeRequest) }, `{"ramp_seconds":1.5,"reason":"r"}`},
	"OutboxRetryRequest": {func() checked { return new(api.OutboxRetryRequest) }, `{
		"tenant_id":"t","jobId":"j","lane":1,"older_than_seconds":1.5,"limit":1}`},
}

// values are what each field is set to in turn: around every limit of the
// document, and of every JSON type.
func values() []any {
	long := func(n int) string { return strings.Repeat("ä", n) }
	list := func(n int) []any { return slices.Repeat([]any{"x"}, n) }
	return []any{
		"", "x", long(128), long(129), long(255), long(256), long(1024), long(1025), "RESULT", "SUCCEEDED",
		"2026-01-27T11:02:00.5+01:00",
		-1.0, 0.0, 1.0, 99.0, 100.0, 101.0, 10000.0, 10001.0, 86400.0, 86401.0, 604800.0, 604801.0, 315360000.0, 315360001.0, 0.25,
		true, false,
		[]any{}, []any{""}, []any{1.0}, []any{long(255)}, []any{long(256)}, list(64), list(65), list(1000), list(1001),
		map[string]any{}, map[string]any{"uri": "u", "etag": 1.0},
		map[string]any{"code": long(128), "message": long(5000)}, map[string]any{"code": long(129)},
	}
}

// accepts reports whether the request is accepted by decoding and checking.
func accepts(t *testing.T, fresh func() checked, body []byte) bool {
	t.Helper()
	request := fresh()
	return json.Unmarshal(body, request) == nil && len(request.Check()) == 0
}

// differsOnPurpose names where the code is laxer than the document: the URI of
// a reference is left to the use case, which answers ref_invalid, and an empty
// word counts as absent. It is stricter with a document's name, whose limit is in
// bytes, and with empty tags, which the schema allows in a command: as a filter they
// would select everything.
func differsOnPurpose(field string, value any) bool {
	switch value := value.(type) {
	case string:
		return (field == "type" || field == "from") && value == "" || field == "doc_id" && len(value) > api.MaxDocID
	case map[string]any:
		return strings.HasSuffix(field, "_ref") && value["uri"] == nil || field == "tags" && len(value) == 0
	}
	return false
}

func TestChecksAgreeWithTheDocument(t *testing.T) {
	t.Parallel()
	schemas := document(t).Components.Schemas
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema := schemas[name].Value
			var specimen map[string]any
			if err := json.Unmarshal([]byte(request.specimen), &specimen); err != nil {
				t.Fatal(err)
			}
			compare := func(what string, body map[string]any) {
				encoded, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				documented := schema.VisitJSON(body) == nil
				if code := accepts(t, request.fresh, encoded); code != documented {
					t.Errorf("%s: accepted by the document %t, by the code %t", what, documented, code)
				}
			}
			if err := schema.VisitJSON(specimen); err != nil {
				t.Fatalf("the specimen is refused: %v", err)
			}
			compare("specimen", specimen)
			for field := range specimen {
				without := maps.Clone(specimen)
				delete(without, field)
				if !exclusive(name, field) {
					compare("without "+field, without)
				}
				for _, value := range values() {
					if differsOnPurpose(field, value) || exclusive(name, field) {
						continue
					}
					with := maps.Clone(specimen)
					with[field] = value
					encoded, _ := json.Marshal(value)
					compare(field+" = "+string(encoded[:min(len(encoded), 60)]), with)
				}
			}
		})
	}
}

// exclusive names the fields whose rule a schema does not express: see
// TestAPauseHasOneScope.
func exclusive(name, field string) bool {
	return name == "PauseRequest" && field == "tenant_id"
}

func TestAPauseHasOneScope(t *testing.T) {
	t.Parallel()
	lane := int32(0)
	for name, test := range map[string]struct {
		request api.PauseRequest
		good    bool
	}{
		"none":                    {api.PauseRequest{}, false},
		"all":                     {api.PauseRequest{All: true}, true},
		"lane 0":                  {api.PauseRequest{Lane: &lane}, true},
		"a protocol":              {api.PauseRequest{ProtocolID: new("p")}, true},
		"a service":               {api.PauseRequest{Service: new("s")}, true},
		"service and lane":        {api.PauseRequest{Service: new("s"), Lane: &lane}, false},
		"an empty service":        {api.PauseRequest{Service: new("")}, false},
		"tenant and all":          {api.PauseRequest{TenantID: new("t"), All: true}, false},
		"an empty tenant and all": {api.PauseRequest{TenantID: new(""), All: true}, false},
		"an empty protocol":       {api.PauseRequest{ProtocolID: new("")}, false},
	} {
		test.request.Reason = "r"
		if got := len(test.request.Check()) == 0; got != test.good {
			t.Errorf("%s is accepted: %t", name, got)
		}
	}
}

func TestParsePauseID(t *testing.T) {
	t.Parallel()
	name := "tenant/a ~%é"
	id := (&api.PauseRequest{TenantID: &name}).Scope().ID()
	if pause, err := api.ParsePauseID(id); err != nil || pause.TenantID() != name {
		t.Errorf("%s is %+v, %v", id, pause, err)
	}
	for _, id := range []string{"", "tenant:", "tenant:~zz", "lane:x", "x:y"} {
		if pause, err := api.ParsePauseID(id); err == nil {
			t.Errorf("%q is %+v", id, pause)
		}
	}
}

func TestRetryJobIDsStandAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		request api.RetryRequest
		good    bool
	}{
		"ids":              {api.RetryRequest{JobIDs: []string{"j"}}, true},
		"ids and a filter": {api.RetryRequest{JobIDs: []string{"j"}, TenantID: new("t")}, false},
		"an empty id":      {api.RetryRequest{JobIDs: []string{""}}, false},
		"no ids":           {api.RetryRequest{JobIDs: []string{}}, false}, // They would select every job.
		"too many ids":     {api.RetryRequest{JobIDs: slices.Repeat([]string{"j"}, api.MaxRetryJobs+1)}, false},
	} {
		if got := len(test.request.Check()) == 0; got != test.good {
			t.Errorf("%s are accepted: %t", name, got)
		}
	}
}

func TestTagsOfOperations(t *testing.T) {
	t.Parallel()
	many := api.Tags{}
	for i := range statemachine.MaxTags + 1 {
		many[fmt.Sprint("k", i)] = "v"
	}
	alone := []apierror.Violation{{Pointer: "/job_ids", Message: "must not be combined with filters"}}
	for name, test := range map[string]struct {
		ids   []string
		docID *string
		tags  api.Tags
		want  []apierror.Violation
	}{
		"a document":        {nil, new("d"), nil, nil},
		"tags":              {nil, nil, api.Tags{"env": "prod", "lucius.batch": "7"}, nil},
		"an empty document": {nil, new(""), nil, []apierror.Violation{{Pointer: "/doc_id", Message: "must not be empty: leave it out to select all"}}},
		"empty tags":        {nil, nil, api.Tags{}, []apierror.Violation{{Pointer: "/tags", Message: "must not be empty: leave it out"}}},
		"too many tags":     {nil, nil, many, []apierror.Violation{{Pointer: "/tags", Message: "must not hold more than 8 tags", Code: apierror.TooLarge}}},
		"tags without value": {nil, nil, api.Tags{"a/": "x", "b": ""}, []apierror.Violation{
			{Pointer: "/tags/a~1", Message: statemachine.TagFault("a/", "x")}, {Pointer: "/tags/b", Message: statemachine.TagFault("b", "")},
		}},
		"ids and a document": {[]string{"j"}, new("d"), nil, alone},
		"ids and tags":       {[]string{"j"}, nil, api.Tags{"env": "prod"}, alone},
	} {
		retry := api.RetryRequest{JobIDs: test.ids, DocID: test.docID, Tags: test.tags}
		bulk := api.BulkRequest{JobIDs: test.ids, DocID: test.docID, Tags: test.tags}
		for _, got := range [][]apierror.Violation{retry.Check(), bulk.Check()} {
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestRerunRequest_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	ref := api.RefTo("s3://b/o")
	for name, test := range map[string]struct {
		request api.RerunRequest
		want    string // the pointers
	}{
		"corrections":              {api.RerunRequest{FromStep: new("s"), PayloadPatch: []byte("{}"), InputRef: ref, Resolve: []api.ResolvedStep{{StepID: "s", OutputRef: ref}}, Tags: api.Tags{"a": "b"}}, ""},
		"nothing but null":         {api.RerunRequest{Payload: []byte("null"), PayloadPatch: []byte("null"), InputRef: []byte("null")}, ""},
		"an empty step":            {api.RerunRequest{FromStep: new("")}, "/from_step"},
		"two starts":               {api.RerunRequest{FromStep: new("s"), From: api.RerunFromStart}, "/from_step"},
		"a reference without URI":  {api.RerunRequest{WorkspaceRef: []byte("{}")}, "/workspace_ref/uri"},
		"a step resolved twice":    {api.RerunRequest{Resolve: []api.ResolvedStep{{StepID: "s", OutputRef: ref}, {StepID: "s", OutputRef: ref}}}, "/resolve/1/step_id"},
		"a step without an output": {api.RerunRequest{Resolve: []api.ResolvedStep{{StepID: "s"}}}, "/resolve/0/output_ref"},
		"too many steps":           {api.RerunRequest{Resolve: make([]api.ResolvedStep, api.MaxResolved+1)}, "/resolve"},
		"words":                    {api.RerunRequest{Protocol: "old", Callbacks: "all"}, "/protocol /callbacks"},
		"a tag of the system":      {api.RerunRequest{Tags: api.Tags{"lucius.operation": "x", "Env": "prod"}}, "/tags/Env /tags/lucius.operation"},
	} {
		var got []string
		for _, violation := range test.request.Check() {
			got = append(got, violation.Pointer)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: refused %v, want %q", name, got, test.want)
		}
		if test.request.Payload != nil {
			t.Errorf("%s: the payload is %s", name, test.request.Payload)
		}
	}
}

func TestOutboxIDsStandAlone(t *testing.T) {
	t.Parallel()
	lane := int32(0)
	both := []apierror.Violation{{Pointer: "/outbox_ids", Message: "must not be combined with filters"}}
	for _, test := range []struct {
		name    string
		request api.OutboxRetryRequest
		want    []apierror.Violation
	}{
		{"nothing is all", api.OutboxRetryRequest{}, nil},
		{"ids alone", api.OutboxRetryRequest{OutboxIDs: []string{"a"}}, nil},
		{"no ids, which would select every row", api.OutboxRetryRequest{OutboxIDs: []string{}}, []apierror.Violation{
			{Pointer: "/outbox_ids", Message: "must not be empty: leave it out to name no ids"},
		}},
		{"ids and a tenant", api.OutboxRetryRequest{OutboxIDs: []string{"a"}, TenantID: new("t")}, both},
		{"ids and lane 0", api.OutboxRetryRequest{OutboxIDs: []string{"a"}, Lane: &lane}, both},
		{"an empty id", api.OutboxRetryRequest{OutboxIDs: []string{"a", ""}}, []apierror.Violation{
			{Pointer: "/outbox_ids/1", Message: "is required and must not be empty"},
		}},
		{"too many ids", api.OutboxRetryRequest{OutboxIDs: slices.Repeat([]string{"a"}, api.MaxOutboxIDs+1)}, []apierror.Violation{
			{Pointer: "/outbox_ids", Message: "must not hold more than 1000 entries", Code: apierror.TooLarge},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, test.request.Check()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// An owner or request that differs from another one only in what readers do not see is a
// mistake that is hard to find.
func TestIdsAndReasonsAreReadable(t *testing.T) {
	t.Parallel()
	const blank, control = "must not be blank, nor begin or end with a blank", "must not contain control characters"
	claim := func(c api.ClaimRequest) []apierror.Violation { return c.Check() }
	for _, test := range []struct {
		name string
		got  []apierror.Violation
		want []apierror.Violation
	}{
		{"words", claim(api.ClaimRequest{Owner: "worker 7 ä", RequestID: "r"}), nil},
		{"a blank owner", claim(api.ClaimRequest{Owner: " ", RequestID: "r"}), []apierror.Violation{{Pointer: "/owner", Message: blank}}},
		{"a no-break space", claim(api.ClaimRequest{Owner: "w\u00a0", RequestID: "r"}), []apierror.Violation{{Pointer: "/owner", Message: blank}}},
		{"an escape", claim(api.ClaimRequest{Owner: "w\x1b[2J", RequestID: "r"}), []apierror.Violation{{Pointer: "/owner", Message: control}}},
		{"a line in a request id", claim(api.ClaimRequest{Owner: "w", RequestID: "r\nx"}), []apierror.Violation{{Pointer: "/request_id", Message: control}}},
		{"a verb", (&api.WorkVerb{Owner: "w ", ExpectedRev: 1, RequestID: " r"}).Check(), []apierror.Violation{
			{Pointer: "/owner", Message: blank}, {Pointer: "/request_id", Message: blank},
		}},
		{"an operator's verb", (&api.AdminWorkRequest{ExpectedRev: 1, RequestID: "r\x00"}).Check(), []apierror.Violation{{Pointer: "/request_id", Message: control}}},
		{"a reason", (&api.ControlRequest{Reason: "so\r\nHTTP"}).Check(), []apierror.Violation{{Pointer: "/reason", Message: control}}},
		{"a reason of a pause", (&api.PauseRequest{All: true, Reason: "\t"}).Check(), []apierror.Violation{{Pointer: "/reason", Message: control}}},
		{"no services", claim(api.ClaimRequest{Owner: "w", RequestID: "r", Services: []string{}, StepTypes: []string{}}), []apierror.Violation{
			{Pointer: "/services", Message: "must not be empty: leave it out to take any"},
			{Pointer: "/step_types", Message: "must not be empty: leave it out to take any"},
		}},
		{"a long wait", claim(api.ClaimRequest{Owner: "w", RequestID: "r", WaitSeconds: 60.5}), []apierror.Violation{
			{Pointer: "/wait_seconds", Message: "must be at most 60"},
		}},
		{"a control character in the host", claim(api.ClaimRequest{Owner: "w", RequestID: "r", Host: "a\nb"}), []apierror.Violation{{Pointer: "/host", Message: control}}},
		{"an escape in the version", claim(api.ClaimRequest{Owner: "w", RequestID: "r", Version: "\x1b"}), []apierror.Violation{{Pointer: "/version", Message: control}}},
		{"a long lease", claim(api.ClaimRequest{Owner: "w", RequestID: "r", LeaseSeconds: 86400.5}), []apierror.Violation{
			{Pointer: "/lease_seconds", Message: "must be at most 86400"},
		}},
	} {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestCheckNamesEveryViolation(t *testing.T) {
	t.Parallel()
	request := api.ResultCallback{
		StepID: strings.Repeat("x", api.MaxName+1), Type: "ACK", OutputRef: json.RawMessage(`"s3://b/o"`), RetryAfterSeconds: -1,
	}
	want := []apierror.Violation{
		{Pointer: "/jobId", Message: "is required and must not be empty"},
		{Pointer: "/stepId", Message: "must not be longer than 128 characters", Code: apierror.TooLarge},
		{Pointer: "/tenant_id", Message: "is required and must not be empty"},
		{Pointer: "/attempt_no", Message: "must be at least 1"},
		{Pointer: "/lease_id", Message: "is required and must not be empty"},
		{Pointer: "/timestamp", Message: "is required"},
		{Pointer: "/type", Message: "must be RESULT here"},
		{Pointer: "/status", Message: "must be SUCCEEDED, FAILED_RETRY or FAILED_FINAL"},
		{Pointer: "/output_ref", Message: "must be an object"},
		{Pointer: "/retry_after_seconds", Message: "must be at least 0"},
	}
	if diff := cmp.Diff(want, request.Check()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCallbacksSayWhenTheyWereSent(t *testing.T) {
	t.Parallel()
	identity := `"jobId":"j","stepId":"s","tenant_id":"t","attempt_no":1,"lease_id":"l","correlation_id":"c","timestamp":`
	for sent, want := range map[string]string{
		`"2026-01-27T11:02:00.5+01:00"`: "2026-01-27T10:02:00.500Z",
		`"0001-01-01T00:00:01Z"`:        "0001-01-01T00:00:01.000Z",
	} {
		for name, callback := range map[string]api.Callback{
			"ack": new(api.AckCallback), "heartbeat": new(api.HeartbeatCallback), "result": new(api.ResultCallback),
		} {
			if err := json.Unmarshal([]byte(`{"status":"SUCCEEDED",`+identity+sent+`}`), callback); err != nil {
				t.Fatal(err)
			}
			if v := callback.Check(); len(v) > 0 {
				t.Errorf("%s sent at %s: %v", name, sent, v)
			}
			var got statemachine.Report
			switch event := callback.Event().(type) {
			case statemachine.Ack:
				got = event.Report
			case statemachine.Heartbeat:
				got = event.Report
			case statemachine.Result:
				got = event.Report
			}
			if got != (statemachine.Report{Timestamp: want, CorrelationID: "c"}) {
				t.Errorf("%s sent at %s is recorded as %+v", name, sent, got)
			}
		}
	}
}

func TestAReferenceHasAURI(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string]apierror.Violation{
		`{}`:                 {Pointer: "/uri", Message: "is required", Code: apierror.RefInvalid},
		`{"uri":null}`:       {Pointer: "/uri", Message: "is required", Code: apierror.RefInvalid},
		`{"URI":"u"}`:        {Pointer: "/uri", Message: "is required", Code: apierror.RefInvalid},
		`{"a":{"uri":"u"}}`:  {Pointer: "/uri", Message: "is required", Code: apierror.RefInvalid},
		`{"uri":""}`:         {Pointer: "/uri", Message: "must not be empty or blank", Code: apierror.RefInvalid},
		`{"uri":"\u00a0\t"}`: {Pointer: "/uri", Message: "must not be empty or blank", Code: apierror.RefInvalid},
		`{"uri":7}`:          {Pointer: "/uri", Message: "must be a string", Code: apierror.RefInvalid},
		`{"uri":{}}`:         {Pointer: "/uri", Message: "must be a string", Code: apierror.RefInvalid},
		`{"uri":"` + strings.Repeat("x", api.MaxURI+1) + `"}`: {
			Pointer: "/uri", Message: "must not be longer than 2048 characters", Code: apierror.TooLarge,
		},
		`{"uri":"u","x":"` + strings.Repeat("x", api.MaxRef) + `"}`: {
			Message: "is 8210 bytes long; at most 8192 are allowed", Code: apierror.TooLarge,
		},
		`{"uri":"u","x":1,"x":2}`:         {Message: "must have each name once in an object, and no half of a surrogate pair"},
		`{"uri":"u","x":[{"y":1,"y":1}]}`: {Message: "must have each name once in an object, and no half of a surrogate pair"},
		`{"uri":"\ud800"}`:                {Message: "must have each name once in an object, and no half of a surrogate pair"},
		`["uri"]`:                         {Message: "must be an object"},
		`{"uri":"u"}`:                     {},
		` {"uri":"u"}`:                    {},
	} {
		t.Run(fmt.Sprintf("%.20s", ref), func(t *testing.T) {
			t.Parallel()
			completion := api.WorkCompletion{Owner: "o", ExpectedRev: 1, RequestID: "r", OutputRef: json.RawMessage(ref)}
			result := api.ResultCallback{
				JobID: "j", StepID: "s", TenantID: "t", AttemptNo: 1, LeaseID: "l", Timestamp: api.NewTime(time.Unix(1, 0)),
				Status: api.ResultStatusSucceeded, ResultRef: json.RawMessage(ref),
			}
			for pointer, got := range map[string][]apierror.Violation{
				"/output_ref": completion.Check(), "/result_ref": result.Check(),
			} {
				var all []apierror.Violation
				if want.Message != "" {
					all = []apierror.Violation{{Pointer: pointer + want.Pointer, Message: want.Message, Code: want.Code}}
				}
				if diff := cmp.Diff(all, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestCheckMakesANullReferenceAnAbsentOne(t *testing.T) {
	t.Parallel()
	var request api.WorkCompletion
	body := `{"owner":"o","expected_rev":1,"request_id":"r","output_ref":null,"result_ref":{"uri":"u"}}`
	if err := json.Unmarshal([]byte(body), &request); err != nil {
		t.Fatal(err)
	}
	if violations := request.Check(); violations != nil {
		t.Errorf("violations %v", violations)
	}
	if request.OutputRef != nil || string(request.ResultRef) != `{"uri":"u"}` {
		t.Errorf("output_ref is %s, result_ref %s", request.OutputRef, request.ResultRef)
	}
}
