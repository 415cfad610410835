{{/* Where pods run: a lost machine or zone takes as few voters along as possible. */}}
{{- define "holdfast.placement" -}}
{{- $terms := dict "labelSelector" (dict "matchLabels" (include "holdfast.selector" . | fromYaml)) -}}
{{- $apart := set (deepCopy $terms) "topologyKey" "kubernetes.io/hostname" -}}
{{- $spread := .Values.spread -}}
{{- if .Values.affinity -}}
affinity:
  {{- toYaml .Values.affinity | nindent 2 }}
{{- else if eq $spread.machines "required" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - {{ toYaml $apart | indent 8 | trim }}
{{- else if eq $spread.machines "preferred" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          {{- toYaml $apart | nindent 10 }}
{{- end }}
{{- if ne $spread.zones "none" }}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (eq $spread.zones "required") }}
    {{- toYaml $terms | nindent 4 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
