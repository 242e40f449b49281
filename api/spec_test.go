package api_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// document loads and validates the OpenAPI document, its examples included.
func document(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.Spec())
	if err != nil {
		t.Fatalf("load openapi.yaml: %v", err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatalf("openapi.yaml is not valid: %v", err)
	}
	return doc
}

// enum returns the values of an enumeration.
func enum(t *testing.T, schema *openapi3.Schema) []string {
	t.Helper()
	var values []string
	for _, value := range schema.Enum {
		values = append(values, value.(string))
	}
	slices.Sort(values)
	return values
}

// sorted returns the values as sorted strings.
func sorted[S ~string](values []S) []string {
	var out []string
	for _, value := range values {
		out = append(out, string(value))
	}
	slices.Sort(out)
	return out
}

func TestSpecBelongsToTheCaller(t *testing.T) {
	t.Parallel()
	api.Spec()[0] = 'X'
	if got := string(api.Spec()[:8]); got != "openapi:" {
		t.Errorf("the document begins with %q after a caller wrote into its copy", got)
	}
}

func TestEnumerationsAgreeWithTheCode(t *testing.T) {
	t.Parallel()
	schemas := document(t).Components.Schemas
	for _, test := range []struct {
		name string
		doc  *openapi3.Schema
		code []string
	}{
		{"problem codes", schemas["ProblemCode"].Value, sorted(apierror.Codes())},
		{"job states", schemas["JobState"].Value, sorted(statemachine.JobStates)},
		{"step states", schemas["StepState"].Value, sorted(statemachine.StepStates)},
		{"modes", schemas["Mode"].Value, sorted([]statemachine.Mode{statemachine.ModeDefault, statemachine.ModeBurst})},
		{"event types", schemas["Event"].Value.Properties["type"].Value, sorted(statemachine.EventTypes())},
		{"event objects", schemas["Event"].Value.Properties["object"].Value, sorted([]statemachine.Object{
			statemachine.ObjectJob, statemachine.ObjectStep, statemachine.ObjectOutbox,
		})},
		{"result statuses", schemas["ResultStatus"].Value, sorted([]statemachine.ResultStatus{
			statemachine.ResultSucceeded, statemachine.ResultFailedRetry, statemachine.ResultFailedFinal,
		})},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.code, enum(t, test.doc)); diff != "" {
				t.Errorf("(-code +openapi.yaml):\n%s", diff)
			}
		})
	}
}

func TestLimitsOfACommandAreTheEnvelopes(t *testing.T) {
	t.Parallel()
	fields := document(t).Components.Schemas["Command"].Value.Properties
	for field, want := range map[string]uint64{
		"tenant_id": commands.MaxTenantID, "request_type": commands.MaxRequestType, "schema_version": commands.MaxSchemaVersion,
		"doc_id": commands.MaxDocID, "idempotency_key": commands.MaxIdempotencyKey, "correlation_id": commands.MaxCorrelationID,
	} {
		if got := fields[field].Value.MaxLength; got == nil || *got != want {
			t.Errorf("%s: maxLength is %v, the envelope takes %d", field, got, want)
		}
	}
	urls := fields["callback_urls"].Value
	if *urls.MaxItems != commands.MaxCallbackURLs || *urls.Items.Value.MaxLength != commands.MaxCallbackURL {
		t.Errorf("callback_urls: %d of %d, the envelope takes %d of %d",
			*urls.MaxItems, *urls.Items.Value.MaxLength, commands.MaxCallbackURLs, commands.MaxCallbackURL)
	}
	if uri := fields["input_ref"].Value.Properties["uri"].Value; *uri.MaxLength != commands.MaxURI {
		t.Errorf("uri: maxLength is %d, the envelope takes %d", *uri.MaxLength, commands.MaxURI)
	}
}

// The endpoints that the sources name: Option B, 4, and the canvas, Key API Endpoints.
func TestTheDocumentHasTheEndpointsOfTheSources(t *testing.T) {
	t.Parallel()
	paths := document(t).Paths
	for _, endpoint := range []string{
		"POST /v1/commands", "POST /v1/orchestrate", "GET /v1/jobs/{jobId}", "GET /v1/jobs/{jobId}/steps",
		"POST /v1/jobs/{jobId}:cancel", "POST /v1/jobs/{jobId}:pause", "POST /v1/jobs/{jobId}:resume",
		"POST /v1/callbacks/ack", "POST /v1/callbacks/result", "POST /v1/admin/outbox/retry",
	} {
		method, path, _ := strings.Cut(endpoint, " ")
		if item := paths.Value(path); item == nil || item.GetOperation(method) == nil {
			t.Errorf("the document has no %s", endpoint)
		}
	}
}

func TestThePageOfTheDocumentIsTheCodes(t *testing.T) {
	t.Parallel()
	limit := document(t).Components.Parameters["Limit"].Value.Schema.Value
	if limit.Default != float64(api.DefaultPage) || *limit.Max != api.MaxPage {
		t.Errorf("the document says %v entries by default and at most %v, want %d and %d",
			limit.Default, *limit.Max, api.DefaultPage, api.MaxPage)
	}
}

func TestEveryOperationDocumentsItsFailures(t *testing.T) {
	t.Parallel()
	for path, item := range document(t).Paths.Map() {
		for method, operation := range item.Operations() {
			if !strings.HasPrefix(path, "/v1/") {
				continue
			}
			want := []string{"401", "403", "429", "500", "503"}
			if method == "POST" {
				want = append(want, "400", "413", "415")
			}
			if strings.Contains(path, "{") {
				want = append(want, "404")
			}
			for _, status := range want {
				response := operation.Responses.Value(status)
				if response == nil || response.Value.Content["application/problem+json"] == nil {
					t.Errorf("%s %s: %s is not documented as a problem", method, path, status)
				}
			}
		}
	}
}

func TestEveryFieldHasADescriptionAndAnExample(t *testing.T) {
	t.Parallel()
	for name, schema := range document(t).Components.Schemas {
		if schema.Value.Description == "" {
			t.Errorf("%s has no description", name)
		}
		for field, property := range schema.Value.Properties {
			if property.Value.Description == "" {
				t.Errorf("%s.%s has no description", name, field)
			}
			composed := property.Value.Type.Is("array") || property.Ref != "" || len(property.Value.AllOf) > 0
			if !composed && property.Value.Example == nil {
				t.Errorf("%s.%s has no example", name, field)
			}
		}
	}
}

func TestFieldNamesAreTheContracts(t *testing.T) {
	t.Parallel()
	for name, schema := range document(t).Components.Schemas {
		for field := range schema.Value.Properties {
			if field == "jobId" || field == "stepId" {
				continue
			}
			if strings.ToLower(field) != field || strings.ContainsAny(field, "-.") {
				t.Errorf("%s.%s is not snake_case", name, field)
			}
		}
	}
}

// A public operation is marked as such: every other one needs a token.
func TestOnlyProbesAndTheDocumentArePublic(t *testing.T) {
	t.Parallel()
	doc := document(t)
	if len(doc.Security) != 1 || doc.Security[0]["bearer"] == nil {
		t.Errorf("the document asks for %v", doc.Security)
	}
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			rule, ok := auth.RuleFor(method, path)
			open := operation.Security != nil && len(*operation.Security) == 0
			if !ok || open != (rule.Scope == auth.Public) {
				t.Errorf("%s %s: public is %t, and its rule %+v", method, path, open, rule)
			}
		}
	}
}
