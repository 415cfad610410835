{{/* Names, labels and addresses. */}}

{{- define "holdfast.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of nearly everything. 52 characters at most: a pod's label `controller-revision-hash` is this name and eleven characters. */}}
{{- define "holdfast.fullname" -}}
{{- $name := include "holdfast.name" . -}}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $both | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* The headless Service, which gives each pod a name of its own. */}}
{{- define "holdfast.peers" -}}
{{- include "holdfast.fullname" . }}-peers
{{- end -}}

{{- define "holdfast.domain" -}}
{{- .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* What follows a pod's name in its DNS name. */}}
{{- define "holdfast.podDomain" -}}
{{- include "holdfast.peers" . }}.{{ include "holdfast.domain" . }}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "holdfast.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "holdfast.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "holdfast.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The secret with certificate, key and CA. */}}
{{- define "holdfast.secret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "holdfast.fullname" .)) -}}
{{- end -}}

{{/* The file $which of TLS within that secret; cert-manager has names of its own. */}}
{{- define "holdfast.tlsFile" -}}
{{- $own := dict "cert" "tls.crt" "key" "tls.key" "ca" "ca.crt" -}}
{{- get (ternary .root.Values.tls.files $own (ne .root.Values.tls.existingSecret "")) .which -}}
{{- end -}}

{{- define "holdfast.tlsPath" -}}
/etc/holdfast/certs/{{ include "holdfast.tlsFile" . }}
{{- end -}}
