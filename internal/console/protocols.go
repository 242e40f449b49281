package console

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// protocolsPage shows the protocols, with the steps of each.
type protocolsPage struct {
	api.ProtocolList

	Shown []protocolCard
}

// protocolCard is a protocol with the command that submits a job of it.
type protocolCard struct {
	api.Protocol

	Command string
}

func protocols(r *request) (view, error) {
	list, err := call[api.ProtocolList](r.api.ListProtocols(r.Context()))
	if err != nil {
		return view{}, err
	}
	data := protocolsPage{ProtocolList: list}
	for i := range list.Protocols {
		data.Shown = append(data.Shown, protocolCard{Protocol: list.Protocols[i], Command: submitting(r, &list.Protocols[i])})
	}
	return view{Title: "Protocols", Template: "protocols", Data: data}, nil
}

// submitting returns the command that submits a job of the protocol.
func submitting(r *request, p *api.Protocol) string {
	tenant := "my_tenant"
	if names := r.tenants(api.GrantRoleSubmit); len(names) > 0 && names[0] != "*" {
		tenant = names[0]
	}
	body := struct {
		TenantID      string            `json:"tenant_id"`
		RequestType   string            `json:"request_type"`
		SchemaVersion string            `json:"schema_version"`
		InputRef      map[string]string `json:"input_ref"`
		OutputRef     map[string]string `json:"output_ref"`
		Payload       map[string]any    `json:"payload"`
	}{
		TenantID: tenant, RequestType: "TYPE", SchemaVersion: "1", Payload: map[string]any{},
		InputRef: map[string]string{"uri": "s3://bucket/in"}, OutputRef: map[string]string{"uri": "s3://bucket/out"},
	}
	if len(p.PayloadExample) > 0 {
		body.Payload = p.PayloadExample
	}
	if len(p.RequestTypes) > 0 {
		body.RequestType = p.RequestTypes[0]
	}
	if len(p.SchemaVersions) > 0 {
		body.SchemaVersion = p.SchemaVersions[0]
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // The payload was read from JSON.
	}
	return "curl " + diagnosis.Quoted(r.Origin+"/v1/commands") + r.Authorization() +
		" -H 'Content-Type: application/json' -d " + diagnosis.Quoted(string(text))
}

// Authorization returns curl's options for a server with access control, empty without. They
// name environment variables, so that the copied command does not hold the user's token.
func (r *request) Authorization() string {
	switch r.Who.Origin {
	case api.IdentityOriginLocal:
		return ""
	case api.IdentityOriginCertificate:
		return ` --cert "$LUCIUS_CLIENT_CERT" --key "$LUCIUS_CLIENT_KEY"`
	default:
		return ` -H "Authorization: Bearer $LUCIUS_TOKEN"`
	}
}

// offer is a name that a field offers, with what it is the name of.
type offer struct{ Name, Of string }

// filterOffers are what the fields of a filter offer.
type filterOffers struct{ Services, RequestTypes []offer }

// known returns the protocols, or none: a field takes any name as well, and a page without them
// is as true, and says less.
func (r *request) known() []api.Protocol {
	list, err := call[api.ProtocolList](r.api.ListProtocols(r.Context()))
	if err != nil {
		return nil
	}
	return list.Protocols
}

// filterOffersOf returns the names that the protocols know.
func filterOffersOf(protocols []api.Protocol) filterOffers {
	return filterOffers{offersOf(protocols, nil, "service"), offersOf(protocols, nil, "request type")}
}

// offersOf returns the names of some kinds among those that the protocols know and the tenants.
func offersOf(protocols []api.Protocol, tenants []string, kinds ...string) (all []offer) {
	add := func(kind string, names ...string) {
		for _, name := range names {
			if slices.Contains(kinds, kind) && name != "*" {
				all = append(all, offer{name, kind})
			}
		}
	}
	add("tenant", tenants...)
	for i := range protocols {
		add("protocol", protocols[i].ProtocolID)
		add("request type", protocols[i].RequestTypes...)
		for j := range protocols[i].Steps {
			add("service", protocols[i].Steps[j].Service)
		}
	}
	slices.SortFunc(all, func(a, b offer) int { return cmp.Or(strings.Compare(a.Of, b.Of), strings.Compare(a.Name, b.Name)) })
	return slices.Compact(all)
}
