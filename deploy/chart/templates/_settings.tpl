{{/*
The settings file of the nodes. A string, number, truth value or list of these is written alike in JSON and in TOML. (`toToml` would write
numbers of values.yaml as fractions.)
*/}}
{{- define "holdfast.settings" -}}
{{- $address := .Values.listenAddress -}}
{{- $settings := .Values.settings | default dict -}}
# A node without data asks the members below to be admitted, and gets its number from them. It never forms a cluster by itself.
join = "auto"
listen = {{ printf "%s:7420" $address | toJson }}
peer_listen = {{ printf "%s:7421" $address | toJson }}
admin_listen = {{ printf "%s:7422" $address | toJson }}
tls_cert = {{ include "holdfast.tlsPath" (dict "root" . "which" "cert") | toJson }}
tls_key = {{ include "holdfast.tlsPath" (dict "root" . "which" "key") | toJson }}
tls_ca = {{ include "holdfast.tlsPath" (dict "root" . "which" "ca") | toJson }}
{{- include "holdfast.keys" (omit $settings "cluster" "fallback") }}

[cluster]
cluster_name = {{ .Values.clusterName | toJson }}
{{ include "holdfast.members" . }}
{{- include "holdfast.keys" ($settings.cluster | default dict) }}
{{- with $settings.fallback }}

[fallback]
{{- include "holdfast.keys" . }}
{{- end }}
{{- end -}}

{{- define "holdfast.keys" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* The members to ask for admission, as many as are to vote: the pods by their stable names, without numbers, which the cluster gives. */}}
{{- define "holdfast.members" -}}
{{- $pod := include "holdfast.fullname" . -}}
{{- $domain := include "holdfast.podDomain" . -}}
members = [
{{- range $ordinal := until (int (.Values.members | default .Values.replicas)) }}
{{- $host := printf "%s-%d.%s" $pod $ordinal $domain }}
  { advertise = {{ printf "%s:7420" $host | toJson }}, peer_advertise = {{ printf "%s:7421" $host | toJson }} },
{{- end }}
]
{{- end -}}
